"""Serves a model folder with vLLM, as it is, and prints the log probabilities of all tokens after a prompt, as JSON.

python served_by_vllm.py FOLDER SIZE_OF_THE_VOCABULARY TOKEN ...
"""

import json
import sys


def main() -> None:
    from vllm import LLM, SamplingParams

    folder, (size, *tokens) = sys.argv[1], [int(word) for word in sys.argv[2:]]
    served = LLM(model=folder, dtype="float32", enforce_eager=True, max_model_len=64, max_logprobs=size)
    asked = SamplingParams(max_tokens=1, temperature=0.0, logprobs=size)
    (answer,) = served.generate([{"prompt_token_ids": tokens}], asked)
    found = {token: value.logprob for token, value in answer.outputs[0].logprobs[0].items()}
    text = served.get_tokenizer().decode(tokens[1:-1])
    print(json.dumps({"logprobs": [found[token] for token in sorted(found)], "text": text}))


if __name__ == "__main__":
    main()
