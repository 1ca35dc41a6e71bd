"""Calls as elements: a tag that holds the name, and one element for each argument.

Knows nothing about special tokens, apart from which of its marks may be some.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from omlx.server.parse.arguments import Call, Ends
from omlx.server.parse.grammar import never
from omlx.server.parse.lark import Written, tagged_grammar
from omlx.server.parse.marks import Marks
from omlx.server.parse.prose import Prose
from omlx.server.parse.said import Parser, Tools
from omlx.server.parse.source import Reading, Source, Steps, Waits
from omlx.server.parse.typed import functions

_HEAD_LIMIT = 512
_HEAD_END = Marks([">"])
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_ASSIGNED = re.compile(r"""\s*=\s*["']?([^"'<>\r\n]+?)["']?\s*""")


@dataclass(frozen=True)
class Tags:
    """The tags of one format."""

    call: str
    call_end: str
    argument: str
    argument_end: str
    # Around one or more calls; without it calls stand alone.
    section: tuple[str, str] | None = None
    # Calls may also stand alone, if they begin like this and name a tool of the request.
    bare: tuple[str, ...] = ()
    is_on_lines: bool = False
    # How the grammar writes it: {} is the name, the newlines are the template's.
    written: Written = field(default_factory=Written)


class TaggedFormat:
    """A `CallFormat` of tags."""

    def __init__(self, name: str, tags: Tags, *, kept: frozenset[str] = frozenset()) -> None:
        self._name = name
        self._tags = tags
        self._marks = _Lookout(tags)
        self._kept = kept

    @property
    def name(self) -> str:
        """By which settings name it."""
        return self._name

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        return self._kept

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer."""
        return Reading(lambda source: _Reader(source, self._tags, self._marks, tools).read())

    def grammar(
        self, tools: Tools, *, is_parallel: bool, is_special: Callable[[str], bool] = never
    ) -> str:
        """A Lark grammar of one call, or of one or more."""
        written = self._tags.written
        return tagged_grammar(written, tools, is_parallel=is_parallel, is_special=is_special)


class _Lookout:
    """What to look for, by place; made once for all answers."""

    def __init__(self, tags: Tags) -> None:
        section = tags.section or ()
        tail = [tags.call_end, *section[1:]]
        self.ends = Ends(tags.argument_end, is_on_lines=tags.is_on_lines, tail=tail)
        self.call = Marks([tags.call])
        self.outside = Marks([*section[:1], *tags.bare])
        self.inside = Marks([*section, tags.call])
        self.after = Marks([*section, *tags.bare])
        self.body = Marks([tags.argument, tags.call_end, tags.call, *section])
        self.next = Marks([tags.argument, tags.call_end])


class _Reader:
    """Reads one answer."""

    def __init__(self, source: Source, tags: Tags, marks: _Lookout, tools: Tools) -> None:
        self._source = source
        self._tags = tags
        self._functions = functions(tools)
        self._prose = Prose(source)
        self._marks = marks
        self._is_inside = False

    def read(self) -> Steps[None]:
        """Everything that the answer says."""
        tags, source = self._tags, self._source
        opener, closer = tags.section or ("", "")
        while True:
            mark = yield from self._prose.until(self._near())
            if mark is None:
                return
            if mark == closer:
                self._prose.drop()
                self._is_inside = False
                continue
            if mark == opener:
                is_call = (yield from source.space()) and (
                    yield from source.literal(self._marks.call)
                )
            else:
                # Look again: a bare mark is longer than the one that begins a call.
                source.rewind()
                is_call = yield from source.literal(self._marks.call)
            name = (yield from self._head()) if is_call else ""
            if name and (mark == opener or self._is_inside or (yield from self._is_certain(name))):
                self._is_inside = self._is_inside or mark == opener
                yield from self._calls(name)
            else:
                yield from self._prose.refuse(mark)

    def _near(self) -> Marks:
        if self._is_inside:
            return self._marks.inside
        return self._marks.after if self._prose.num_calls else self._marks.outside

    def _is_certain(self, name: str) -> Waits[bool]:
        """Whether a call without a section is one, and no text about calls."""
        if name not in self._functions:
            return False
        at = self._source.mark()
        is_near = yield from self._source.space()
        is_call = is_near and bool((yield from self._source.literal(self._marks.next)))
        self._source.back(at)
        return is_call

    def _calls(self, name: str) -> Steps[None]:
        """A call whose name was read, and those right behind it."""
        source = self._source
        while name:
            source.commit()
            call = Call(self._prose.call(), name, self._functions.get(name, {}))
            yield call.began()
            mark = yield from self._arguments(call)
            yield from call.ended()
            if mark == (self._tags.section or ("", ""))[1]:
                self._is_inside = False
            name = (yield from self._head()) if mark == self._tags.call else ""
        source.rewind()

    def _arguments(self, call: Call) -> Steps[str | None]:
        """The arguments of a call up to its end, or to a mark that shows that it is missing."""
        while True:
            mark = yield from self._source.past(self._marks.body)
            self._source.commit()
            if mark != self._tags.argument:
                return mark
            if key := (yield from self._head()):
                self._source.commit()
                yield from call.value(self._source, key, self._marks.ends)
            self._source.rewind()

    def _head(self) -> Waits[str]:
        """The name in what stands between the beginning of a tag and its end, "" for none."""
        found = yield from self._source.upto(_HEAD_END, _HEAD_LIMIT)
        if not found:
            return ""
        if assigned := _ASSIGNED.fullmatch(found[0]):
            return assigned[1].strip()
        pairs = _ATTRIBUTE.findall(found[0]) if found[0][:1].isspace() else []
        values = {key: double or single or bare for key, double, single, bare in pairs}
        return values.get("name", "")


_CODER = Tags(
    section=("<tool_call>", "</tool_call>"),
    call="<function",
    bare=("<function=", "<function name="),
    call_end="</function>",
    argument="<parameter",
    argument_end="</parameter>",
    is_on_lines=True,
    written=Written(
        section=("<tool_call>\n", "</tool_call>"),
        call=("<function={}>\n", "</function>\n"),
        argument=("<parameter={}>\n", "\n</parameter>\n"),
        between="\n",
        is_section_each=True,
    ),
)
_MINIMAX = Tags(
    section=("<minimax:tool_call>", "</minimax:tool_call>"),
    call="<invoke",
    bare=("<invoke name=",),
    call_end="</invoke>",
    argument="<parameter",
    argument_end="</parameter>",
    written=Written(
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        call=('<invoke name="{}">\n', "</invoke>\n"),
        argument=('<parameter name="{}">', "</parameter>\n"),
    ),
)
_MINICPM = Tags(
    call="<function",
    bare=("<function name=", "<function="),
    call_end="</function>",
    argument="<param",
    argument_end="</param>",
    written=Written(
        call=('<function name="{}">', "</function>"),
        argument=('<param name="{}">', "</param>"),
        between="\n",
    ),
)
_MUSE = Tags(
    section=("<atem:function_calls>", "</atem:function_calls>"),
    call="<atem:invoke",
    call_end="</atem:invoke>",
    argument="<atem:parameter",
    argument_end="</atem:parameter>",
    written=Written(
        section=("<atem:function_calls>\n", "</atem:function_calls>"),
        call=('<atem:invoke name="{}">\n', "</atem:invoke>\n"),
        argument=('<atem:parameter name="{}">', "</atem:parameter>\n"),
    ),
)

QWEN3_CODER = TaggedFormat("qwen3_coder", _CODER)
MINIMAX_M2 = TaggedFormat("minimax_m2", _MINIMAX, kept=frozenset(_MINIMAX.section or ()))
MINICPM = TaggedFormat("minicpm", _MINICPM)
MUSE_SPARK = TaggedFormat("muse_spark", _MUSE)
