"""Functions of the user's, named package.module:function, such as one that builds a start model."""

import os
import random
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.update import Spec, finite, flatten
from securemedian.mpc.errors import ConfigError, InputError


def start_model(
    source: str, seed: int, keep_local: Sequence[str] = ()
) -> tuple[NDArray[np.float32], Spec]:
    """Call the function `source`, written package.module:build, and flatten the model it returns.

    Entries that fit a pattern of `keep_local` are left out.

    Before the call the random numbers of Python, numpy and, if the module imports it, torch are
    seeded. Raises ConfigError if the function is missing or fails, and InputError if it
    returns no model, or one with a value that is not a finite float32.
    """
    build = function_of(source)
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    try:
        model = build()
    # it is the user's code, and may raise anything
    except Exception as error:
        raise ConfigError(
            f"the function failed: {source} ({in_one_line(error)}); correct it"
        ) from error
    try:
        vector, spec = flatten(model, keep_local)
    except InputError as error:
        raise InputError(
            f"the function returned no model: {source} ({error}); return a module or a state_dict"
        ) from error
    return finite(vector, spec), spec


def function_of(source: str) -> Any:
    """Return the function package.module:function. Raises ConfigError if there is none."""
    name, _, function = source.partition(":")
    if not name or not function:
        raise ConfigError(
            f"invalid source of a model: {source!r}; write it like package.module:function"
        )
    # an installed command has its own folder there, and not the one in which it is run
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(name)
    # importing runs the user's code
    except Exception as error:
        raise ConfigError(
            f"cannot import the module: {name!r} from {os.getcwd()} or what is installed "
            f"({in_one_line(error)}); correct the name, or install it"
        ) from error
    build = getattr(module, function, None)
    if not callable(build):
        raise ConfigError(
            f"the module {name!r} has no such function: {function!r}; correct the name"
        )
    return build


def in_one_line(error: Exception) -> str:
    """Return an error of the user's code as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
