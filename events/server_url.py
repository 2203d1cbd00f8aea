"""The address of a server as a URL, and what a failed TLS handshake means.

    redis://USER:PASSWORD@HOST:PORT/DB      rediss://... over TLS      unix:///PATH

Rule 1: only the options of this file may stand behind the "?". Others would reach the client library and change how a
        command is sent: one that is tried again by itself stores an entry twice.
Rule 2: over TLS the server must show a certificate that its CA has signed for the name in the URL. No option takes this
        away: a password would go to whoever answers.
Rule 3: files are named by absolute paths: workers and reading verbs may be started in another folder.
Rule 4: no text that is made here shows the URL: a password may stand in it.
"""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Options of ``rediss://``: PEM files of the server's CA, of this client's certificate and of its key."""
SECRETS: Final = ("username", "password", "ssl_password")
"""Options that no record and no message holds. ``ssl_password``: of the client's encrypted key."""
OPTIONS: Final = ("db", *FILES, *SECRETS)

CA_GOES: Final = "name the file of its CA: rediss://HOST:PORT/0?ssl_ca_certs=/PATH/ca.pem"
CERTIFICATE_GOES: Final = (
    "name this client's certificate and key: rediss://HOST:PORT/0?ssl_certfile=/PATH/client.pem&"
    "ssl_keyfile=/PATH/client.key"
)
_EXPIRED, _ANOTHER_NAME = (9, 10), (62, 64)


def names_a_server(url: str) -> bool:
    """Whether a URL says where a server is: ``redis://`` and ``rediss://`` need a host, ``unix://`` a path."""
    try:
        parts = urlsplit(url)
        where = parts.path if parts.scheme == "unix" else parts.hostname
        return parts.scheme in ("redis", "rediss", "unix") and bool(where) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def mistake(url: str) -> str | None:
    """What is wrong with the options of a URL that names a server, and what to do; None if nothing is."""
    query = urlsplit(url).query
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in [item.partition("=")[0] for item in query.split("&") if item]:  # as written: "%70assword" is no secret
        if name not in OPTIONS:
            return f"the option {name!r} cannot stand in a server's URL, which takes {', '.join(OPTIONS)}: remove it"
        if name.startswith("ssl_") and not url.startswith("rediss://"):
            return f"{name} does nothing without TLS: write rediss://, or remove it"
    if not options.get("db", "0").isdecimal():
        return f"db={options['db']} is no number of a database: write 0"
    for name in FILES:
        if not Path(options.get(name, "/")).is_absolute():
            return (
                f"{name}={options[name]} is not an absolute path: workers would look for it elsewhere. Begin it with /"
            )
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        return f"ssl_keyfile={options['ssl_keyfile']} is of no use without its certificate: give ssl_certfile too"
    return None


def unreadable(url: str) -> str | None:
    """The first file that the URL names and that cannot be read, and why; None if all can be."""
    for name, path in parse_qsl(urlsplit(url).query):
        if name in FILES:
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                return f"{name}={path} cannot be read ({error.strerror}): correct the path in the URL"
    return None


def why_no_tls(error: BaseException) -> str | None:
    """What ended the TLS handshake and will end the next one as well; None if asking again can help."""
    refusal = next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None)
    reason = (refusal.reason if refusal is not None else None) or ""
    match refusal:
        case ssl.SSLCertVerificationError(verify_code=code, verify_message=message):
            if code in _ANOTHER_NAME:
                return f"shows a certificate for another name ({message}): name it as its certificate does"
            if code in _EXPIRED:
                return f"shows a certificate that does not count today ({message}): renew it, or set the clock"
            return f"shows a certificate of a CA that is not known here ({message}): {CA_GOES}"
        case ssl.SSLError() if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason or "HTTP" in reason:
            return "does not speak TLS at this port: write redis://, or give the port of its TLS"
        case ssl.SSLError() if "ALERT" in reason:
            return f"does not accept this client ({reason}): {CERTIFICATE_GOES}"
        case ssl.SSLError() if "MISMATCH" in reason:
            return f"cannot be asked: ssl_keyfile does not belong to ssl_certfile ({reason}). Give the key of that one"
        case ssl.SSLError() if any(word in f"{reason} {refusal}" for word in ("PEM", "NO_CERTIFICATE", "BAD_")):
            what = "cannot be asked: a file that its URL names is not what it should be"
            return f"{what} ({reason or refusal}). Give PEM files, and ssl_password for a key that is encrypted"
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
