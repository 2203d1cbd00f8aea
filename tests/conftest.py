"""What holds for all tests: no example of a property may fail because the machine was busy."""

from hypothesis import settings

settings.register_profile("busy machine", settings.get_profile("default"), deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("busy machine")
