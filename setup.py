"""Builds the compiled hot loops. pyproject.toml has everything else.

If the build fails, for lack of a C compiler or of Cython, it prints a line and leaves the package in plain
Python. EMBEDLOG_LOOPS=compiled makes that an error; EMBEDLOG_LOOPS=plain builds nothing.
"""

import contextlib
import importlib
import os
import textwrap

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WANTED = os.environ.get("EMBEDLOG_LOOPS", "")
CODEC = "embedlog/codec"
FAST_APPEND = "embedlog/fast_append"
SHARED = [
    *(
        f"{CODEC}/{name}"
        for name in (
            "crc32c.h",
            "fields.h",
            "json_fields.h",
            "named_tuple.h",
            "parsing.pxd",
            "compiled_encoding.pxd",
        )
    ),
    *(
        f"{FAST_APPEND}/{name}"
        for name in ("awaiting.h", "compiled.pxd", "fast_append.h", "instances.h", "murmur2.h")
    ),
]
LOOPS = ("compiled_encoding", "compiled_decoding", "compiled_columns", "compiled_json", "compiled_scanning")
PATHS = ("compiled", "compiled_path", "compiled_send", "compiled_iteration")
DIRECTIVES = {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True}


class BuildLoops(build_ext):
    """Builds all extensions or none, since they need each other."""

    def run(self) -> None:
        named = self.inplace and not self.editable_mode  # setup.py build_ext --inplace
        self.demanded = WANTED == "compiled" or named
        super().run()

    def build_extensions(self) -> None:
        try:
            importlib.import_module("Cython.Build")
            super().build_extensions()
        except Exception as error:  # Cython, setuptools and the system share no base class of errors
            if self.demanded:
                raise
            reason = textwrap.shorten(str(error), 100, placeholder=" ...")
            print(f"embedlog: cannot build the compiled loops, going on without them ({reason})")
            self._remove_built()
            self.extensions = []

    def copy_extensions_to_source(self) -> None:
        if not self.extensions:
            self._remove_built()
        super().copy_extensions_to_source()

    def _remove_built(self) -> None:
        """Remove extensions of an earlier build, which may not match the package any more."""
        for ext in self.distribution.ext_modules:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.get_ext_fullpath(ext.name))


extensions = [
    Extension(
        path.replace("/", "."),
        [f"{path}.py"],
        depends=[f"{path}.pxd", *SHARED],
        include_dirs=[FAST_APPEND, CODEC],
        extra_compile_args=["-O3"],
    )
    for path in (
        *(f"{CODEC}/{name}" for name in LOOPS),
        *(f"{FAST_APPEND}/{name}" for name in PATHS),
    )
]
for extension in extensions:
    extension.cython_directives = DIRECTIVES
    extension.cython_c_in_temp = True

setup(cmdclass={"build_ext": BuildLoops}, ext_modules=[] if WANTED == "plain" else extensions)
