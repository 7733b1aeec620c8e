"""The installed plugins, found once, on first use, and the checks of their records.

A plugin that breaks, or yields a wrong record, keeps its traceback and does not affect the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .context import ALGEBRA
from .contract import API, Backend, Collectives, Kernel
from .errors import PluginApiMismatch, did_you_mean
from .typed import field_types, fits, in_words

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "mha_core.plugins"


@dataclass
class Plugin:
    """An entry point, or a module registered by hand: its records, or its error."""

    name: str
    distribution: str = ""
    version: str = ""
    backends: list[Backend] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collectives] = field(default_factory=list)
    module: Any = None
    error: BaseException | None = None

    @property
    def source(self) -> str:
        """The distribution; of a module that was registered by hand, the distribution that its name suggests."""
        return self.distribution or self.name.replace("_", "-")

    @property
    def owner(self) -> str:
        """Distribution and version as messages name them; the plugin's own name if there are none."""
        return f"{self.distribution} {self.version}" if self.distribution else self.name

    @property
    def traceback(self) -> str:
        from traceback import format_exception  # imported only for an error

        return "".join(format_exception(self.error)) if self.error else ""


class Registry:
    """All plugins, the backends and collectives by name, and the kernels by backend and operation."""

    def __init__(self) -> None:
        self.plugins: list[Plugin] = []
        self.backends: dict[str, tuple[Backend, Plugin]] = {}
        self.kernels: dict[tuple[str, str], list[Kernel]] = {}
        self.collectives: dict[str, tuple[Collectives, Plugin]] = {}

    def discover(self) -> None:
        """Load every plugin that is installed."""
        from importlib.metadata import entry_points  # takes 50 ms, only on first use

        def ours_first(entry: EntryPoint) -> tuple[bool, str]:  # so that no other plugin takes the name of one of our backends
            return entry.dist is None or entry.dist.name != "mha-core", entry.name

        for entry in sorted(entry_points(group=GROUP), key=ours_first):
            self.add_entry(entry)

    def add_entry(self, entry: EntryPoint) -> Plugin:
        dist = entry.dist
        return self._add(Plugin(entry.name, dist.name if dist else "", dist.version if dist else ""), entry.load)

    def add_module(self, module: Any, name: str = "") -> Plugin:
        return self._add(Plugin(name or getattr(module, "__name__", type(module).__name__)), lambda: module)

    def _add(self, plugin: Plugin, load: Callable[[], Any]) -> Plugin:
        """Load a plugin. An error is kept in the plugin, not raised."""
        self.plugins.append(plugin)
        try:
            module = load()
            backends, kernels, collectives = _records(module, plugin.name)
            for at, backend in enumerate(backends):
                _check_name(backend, Backend, backends[:at], self.backends)
            for at, engine in enumerate(collectives):
                _check_name(engine, Collectives, collectives[:at], self.collectives)
            for at, kernel in enumerate(kernels):
                self._check_kernel(kernel, kernels[:at])
        except KeyboardInterrupt:
            self.plugins.remove(plugin)
            raise
        except BaseException as error:  # a plugin must not affect the others, even if it exits
            plugin.error = error
            return plugin
        plugin.module, plugin.backends, plugin.kernels, plugin.collectives = module, backends, kernels, collectives
        self._index()
        return plugin

    def _index(self) -> None:
        """Replace each index as a whole, so that other threads see either the old or the new."""
        kernels: dict[tuple[str, str], list[Kernel]] = {}
        for kernel in sorted((k for p in self.plugins for k in p.kernels), key=lambda k: (-k.priority, k.name)):
            kernels.setdefault((kernel.backend, kernel.op), []).append(kernel)
        self.backends = {backend.name: (backend, plugin) for plugin in self.plugins for backend in plugin.backends}
        self.collectives = {engine.name: (engine, plugin) for plugin in self.plugins for engine in plugin.collectives}
        self.kernels = kernels

    def remove(self, module: Any) -> None:
        removed = [plugin for plugin in self.plugins if plugin.error is None and plugin.module is module]
        if not removed:
            raise ValueError(f"{module!r} is not registered")
        self.plugins = [plugin for plugin in self.plugins if plugin not in removed]
        self._index()

    def owner(self, kernel: Kernel) -> str:
        """Return the distribution and version of a kernel, or the name of its plugin."""
        return next((plugin.owner for plugin in self.plugins if kernel in plugin.kernels), "no plugin")

    def _check_kernel(self, kernel: Kernel, before: list[Kernel]) -> None:
        check_record(kernel, Kernel)
        for other in (*before, *self.kernels.get((kernel.backend, kernel.op), ())):
            if (other.backend, other.op, other.name) == (kernel.backend, kernel.op, kernel.name):
                owner = "this plugin" if other in before else self.owner(other)
                raise ValueError(
                    f"a kernel named {kernel.name!r} for {kernel.op} on {kernel.backend} is already registered by {owner}: "
                    "give this one another name"
                )


ADVICE = {"cast": {"x": "x", "dtype": "float32"}, "convert": {"x": "x"}}
"""The lines of ``Backend.advice``, and what can stand in each."""
_FUNCTIONS = ("load", "prepare", "supports")
"""The fields of a record that may be ``"module:function"``."""


def check_record(record: Any, kind: Any) -> None:
    """Raise TypeError or ValueError, naming the field, unless a record is of this kind and its fields have the declared types.

    Raises PluginApiMismatch for a record that was written for another version of the contract.
    """
    if not isinstance(record, kind):
        raise TypeError(f"a plugin's hook yielded {record!r}; expected a {kind.__name__}")
    if record.api != API:
        raise PluginApiMismatch(
            f"{kind.__name__} {record.name!r} was written for api {record.api}, this mha-core has api {API}: "
            "install a version of the plugin, or of mha-core, that matches"
        )
    for name, declared in field_types(kind).items():
        value = getattr(record, name)
        if not fits(value, declared):
            raise TypeError(f"{name} of {_described(record)} is {value!r}; expected {in_words(declared)}")
    if not record.name:
        raise ValueError(f"name of {_described(record)} is empty; expected what users write")
    if isinstance(record, Kernel) and record.name == ALGEBRA:
        raise ValueError(
            f"a kernel for {record.op} is named {ALGEBRA!r}, which is reserved for the algebra: give it another name"
        )
    for what, line in (record.advice or {}).items() if isinstance(record, Backend) else ():
        try:
            line.format(**ADVICE[what])
        except (LookupError, ValueError) as error:
            expected = ", ".join(f"{name!r} with {' and '.join(f'{{{each}}}' for each in ADVICE[name])}" for name in ADVICE)
            raise ValueError(f"advice of {_described(record)} has {what!r}: {line!r}; expected {expected}") from error
    for field_name in _FUNCTIONS:
        function = getattr(record, field_name, None)
        parts = function.split(":") if isinstance(function, str) else ()
        if isinstance(function, str) and (len(parts) != 2 or not all(parts)):
            raise ValueError(f'{field_name} of {_described(record)} is {function!r}; expected "module:function"')


def _described(record: Backend | Collectives | Kernel) -> str:
    if isinstance(record, Kernel):
        return f"kernel {record.name!r} for {record.op} on {record.backend}"
    return f"{'backend' if isinstance(record, Backend) else 'collectives'} {record.name!r}"


def _check_name(record: Any, kind: Any, before: list[Any], known: dict[str, tuple[Any, Plugin]]) -> None:
    """Check a record whose name must be its own."""
    check_record(record, kind)
    article, noun = ("a", "backend") if kind is Backend else ("an", "engine")
    if record.name in {other.name for other in before}:
        raise ValueError(f"two {noun}s of one plugin are named {record.name!r}: give each another name")
    if record.name in known:
        owner = known[record.name][1].owner
        raise ValueError(f"{article} {noun} named {record.name!r} is already registered by {owner}: give this one another name")


def _records(module: Any, name: str) -> tuple[list[Backend], list[Kernel], list[Collectives]]:
    """Return what the hooks of a plugin yield. Each plugin has its own manager, so that it cannot affect another."""
    import pluggy

    from . import hookspecs

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    expected = [*vars(manager.hook)]
    manager.register(module, name=name)
    hooks = manager.get_hookcallers(module) or []
    for hook in hooks:
        if not hook.has_spec() and not all(implementation.optionalhook for implementation in hook.get_hookimpls()):
            raise TypeError(
                f"{name} marks {hook.name} with @hookimpl, but there is no such hook; expected {' or '.join(expected)}"
                f"{did_you_mean(hook.name, expected)}"
            )
    if not hooks:
        raise TypeError(f"{name} has no hook: define {' or '.join(f'{hook}()' for hook in expected)}, marked with @hookimpl")
    results = manager.hook
    return _flat(results.mha_backends()), _flat(results.mha_kernels()), _flat(results.mha_collectives())


def _flat(results: Iterable[Iterable[Any]]) -> list[Any]:
    return [record for result in results for record in result]


_registry: Registry | None = None
_lock = threading.RLock()
generation = 0
"""Grows whenever a plugin is added or removed. Plans of an earlier generation are not used."""
by_type: dict[type, Any] = {}
"""The loaded backend of each array type seen since then."""
known_modules: set[str] = {"builtins"}
"""The modules of the array types ever seen: a set of names, because compilers can guard on names but not on types."""
calls: list[Callable[..., Any]] = []
"""The functions that every public call passes through, for ``Backend.record_calls``."""


def registry() -> Registry:
    """Return the registry with every installed plugin in it; metadata is read on the first call."""
    global _registry
    if _registry is None:
        with _lock:
            if _registry is None:
                installed = Registry()
                installed.discover()
                _registry = installed
    return _registry


def register(module: Any, name: str = "") -> None:
    """Register a plugin in a notebook or a test: a module, or any object with hooks. Raises the plugin's own error."""
    with _lock:
        plugin = registry().add_module(module, name)
        if plugin.error is not None:
            registry().plugins.remove(plugin)  # its error is raised here instead of listed
            raise plugin.error
        _changed()


def unregister(module: Any) -> None:
    """Remove a plugin that was registered by hand. Raises ValueError if it was not."""
    with _lock:
        registry().remove(module)
        _changed()


def _changed() -> None:
    global generation, by_type
    generation += 1
    by_type = {}
