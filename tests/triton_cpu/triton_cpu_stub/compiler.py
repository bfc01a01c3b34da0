"""The backend's compiler half: it is asked whether it is there, never to compile."""

from typing import Any, NoReturn

from triton.backends.compiler import BaseBackend

_INTERPRET = "the CPU stub compiles nothing: set TRITON_INTERPRET=1"


class StubCompiler(BaseBackend):
    """Takes the target "cpu" and refuses to compile for it."""

    binary_ext = "none"

    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "triton-cpu-stub"

    def parse_options(self, options: object) -> NoReturn:
        raise NotImplementedError(_INTERPRET)

    def add_stages(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(_INTERPRET)

    def load_dialects(self, context: object) -> None:
        pass

    def get_module_map(self) -> dict[str, Any]:
        return {}
