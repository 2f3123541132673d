"""The benchmark of what is off: it leaves out the hooks that the product has, and puts them back."""

from __future__ import annotations

from types import CodeType, FunctionType, ModuleType

import pytest
from benchmark_modules import benchmark_module

pytestmark = pytest.mark.core


def module() -> ModuleType:
    """With those that it imports, which are found by path, too."""
    for name in ("harness", "plain_kafka", "small_requests"):
        benchmark_module(name)
    return benchmark_module("hooks_off")


def size(code: CodeType) -> int:
    """In bytes, with what is defined within."""
    return len(code.co_code) + sum(size(each) for each in code.co_consts if isinstance(each, CodeType))


def test_each_hook_is_there_and_can_be_left_out_and_put_back() -> None:
    hooks_off = module()
    own = {cut.function: cut.function.__code__ for cuts in hooks_off.CUTS.values() for cut in cuts}
    hooks = hooks_off.Hooks()
    try:
        for feature, cuts in hooks_off.CUTS.items():
            hooks.leave_out(feature)
            of_feature = {cut.function for cut in cuts}
            for function, code in own.items():
                assert (function.__code__ is code) == (function not in of_feature), function
                if function in of_feature:
                    assert size(function.__code__) < size(code), function
    finally:
        hooks.leave_out(hooks_off.AS_IT_IS)
    assert all(function.__code__ is code for function, code in own.items())


def test_a_hook_that_is_gone_is_an_error() -> None:
    hooks_off = module()

    def plain() -> int:
        return 1

    assert isinstance(plain, FunctionType)
    with pytest.raises(ValueError, match="0 times"):
        hooks_off.Cut(plain, "a hook that is " + "gone").code()
