"""What all routes share: the engine's client, the tokenizer once it is loaded, and the limits of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

from engine.chat_template import ChatTemplateError
from engine.client import Client
from engine.core_client import CallFailedError, EngineDiedError
from engine.messages import Ready
from engine.protocol import MAX_NUM_SEQS, EngineInfo, Record, Snapshot, decode_item, decode_snapshot
from engine.server.admission import Admission
from engine.server.answer_names import AnswerNames
from engine.server.bodies import check_token_ids
from engine.server.errors import ApiError
from engine.server.hub import StepHub
from engine.server.metrics import Metrics
from engine.server.reading import Bodies
from engine.server.refusals import Refusals
from engine.server.settings import ServeSettings
from engine.supervisor import Death, Supervisor
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:  # a cluster has a service for each of its engines
    from engine.cluster.cluster import Cluster

# To tokenize more characters, to detokenize more tokens or to render more messages would hold up the event loop.
LONG_TEXT = 4_000
LONG_ANSWER = 4_000
LONG_CHAT = 100
ASIDE = 2  # of such work at a time: the threads are needed for more than this
ALONE = "0"  # the name of an engine that is no worker of a cluster, as vLLM numbers the only one
P = ParamSpec("P")
T = TypeVar("T")


class Loaded(NamedTuple):
    """The model as the API process knows it; `folder` is told for local folders only."""

    info: EngineInfo
    tokenizer: Tokenizer
    vocab_size: int
    folder: str | None


class Observer(Protocol):
    """Whoever else is told what an engine does, as `Metrics` are."""

    def begin_again(self) -> None: ...

    def observe(self, record: Record) -> None: ...

    def resume(self, snapshot: Snapshot) -> None: ...


class Service:
    """One engine behind HTTP, or a cluster of them. Until it has loaded, and from a core's death until the next one
    has, a use raises a 503.

    While it is `stopping` it takes no more requests; what lives can be watched to its end. `engine` is what one of
    several is called.
    """

    def __init__(
        self,
        settings: ServeSettings,
        hub: StepHub | None = None,
        observer: Observer | None = None,
        engine: str = ALONE,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.observer = observer
        self.served_names = settings.names
        self.bodies = Bodies(settings.limits)
        self.admission = Admission(settings.limits)
        self.answer_names = AnswerNames(settings.limits.max_queue + MAX_NUM_SEQS)
        self.refusals = Refusals()
        self.hub = StepHub() if hub is None else hub
        self.created = int(time.time())
        self.loaded: Loaded | None = None
        self.metrics: Metrics | None = None
        self.client: Client | None = None
        self.supervisor: Supervisor | None = None
        self.cluster: Cluster | None = None  # where there are several engines; each has a service of its own
        self.stopping = False
        self._resuming: asyncio.Task[None] | None = None
        self._aside = asyncio.Semaphore(ASIDE)

    def end_life(self) -> None:
        """The core is dead. The next one's step numbers begin anew: readers of this one's stream have come to its
        end."""
        self.hub.close()
        self.hub = StepHub()

    def ready(self) -> tuple[Client, Loaded]:
        """Raises ApiError (503) that says why if the engine cannot be asked now."""
        reason = self._engine_missing
        if reason is not None or self.client is None or self.loaded is None:
            raise ApiError(
                reason or "the engine is loading", status=503, code="engine_not_ready", headers={"Retry-After": "1"}
            )
        return self.client, self.loaded

    @property
    def restarts(self) -> int:
        """How often the engine was started again, or engines of a cluster were."""
        if self.cluster is not None:
            return self.cluster.restarts
        return 0 if self.supervisor is None else self.supervisor.deaths

    @property
    def last_death(self) -> Death | None:
        if self.cluster is not None:
            return self.cluster.last_death
        return None if self.supervisor is None else self.supervisor.last

    @property
    def unready_reason(self) -> str | None:
        """Why it cannot serve; None if it can."""
        if not self.stopping:
            return self._engine_missing
        return "the server is shutting down" if self.engine == ALONE else f"{self.engine} is wanted no more"

    @property
    def _engine_missing(self) -> str | None:
        if self.client is not None and self.client.death is not None:
            return str(self.client.death)
        if self.client is not None and self.client.ready and self.loaded is not None:
            return None if self.loaded.info is self.client.info else f"the engine is loading {self.served_names[0]}"
        if self.cluster is not None:
            return self.cluster.missing
        if self.last_death is not None:
            return f"the engine is starting again: {self.last_death.reason}"
        return f"the engine is loading {self.served_names[0]}"

    def on_ready(self, ready: Ready) -> None:
        """The core has its model. Comes before the first record, so that metrics miss none."""
        if self.metrics is None:
            self.metrics = Metrics(ready.engine, self.served_names[0], self.engine)
        else:
            self.metrics.begin_again()
        if self.observer is not None:
            self.observer.begin_again()

    def on_step(self, seq: int, data: bytes) -> None:
        """Take a record from the core: readers and metrics get it."""
        self.hub.publish(seq, data)
        if self.metrics is None:
            return
        record = decode_item(data)
        assert isinstance(record, Record)
        self.metrics.observe(record)
        if self.observer is not None:
            self.observer.observe(record)
        if self.metrics.lost and (self._resuming is None or self._resuming.done()):
            self._resuming = asyncio.create_task(self._resume_metrics(self.metrics))

    async def snapshot(self) -> bytes:
        """A protocol.Snapshot as JSON."""
        client, _ = self.ready()
        reply = await client.snapshot()
        self.hub.seen(reply.seq)
        return reply.json

    def check_model(self, model: str | None) -> str:
        """The name to answer with; a request may leave it out. Raises ApiError (404) for another model's."""
        if model is None or model == "":
            return self.served_names[0]
        if model not in self.served_names:
            raise ApiError(
                f"model: {model!r} does not exist here; served: {', '.join(self.served_names)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return model

    async def encode(self, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
        """Token ids of a text.

        Raises ApiError where the tokenizer knows a token that the model does not, and for a text that could not
        fit the context if all its tokens were the longest: to tokenize megabytes would hold up all other requests.
        """
        _, loaded = self.ready()
        encode = loaded.tokenizer.encode
        if len(text) <= LONG_TEXT:
            ids = encode(text, add_special_tokens=add_special_tokens)
            await asyncio.sleep(0)  # the next of many prompts lets others go first
        else:
            tokens = min(loaded.info.max_model_len, self.settings.limits.max_prompt_tokens or loaded.info.max_model_len)
            most = max(LONG_TEXT, tokens * loaded.tokenizer.longest_token)
            if len(text) > most:
                raise ApiError(
                    f"{param}: {len(text):,} characters are too many; the {tokens:,} tokens that "
                    f"a prompt may have hold at most {most:,}",
                    param=param,
                    code="context_length_exceeded",
                )
            ids = await self.aside(encode, text, add_special_tokens=add_special_tokens)
        check_token_ids(ids, param, loaded.vocab_size)
        return ids

    async def aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what takes long on another thread, a few at a time."""
        async with self._aside:
            return await asyncio.to_thread(work, *args, **kwargs)

    async def encode_prompt(
        self, prompt: str | list[int], *, add_special_tokens: bool, param: str = "prompt"
    ) -> list[int]:
        """Token ids of a prompt given as text or as ids. Raises ApiError for ids that no token has."""
        if isinstance(prompt, str):
            return await self.encode(prompt, add_special_tokens=add_special_tokens, param=param)
        _, loaded = self.ready()
        check_token_ids(prompt, param, loaded.vocab_size)
        return prompt

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        add_special_tokens: bool,
        variables: dict[str, Any] | None,
    ) -> list[int]:
        """The prompt of a chat. Raises ApiError if the model's template refuses it."""
        _, loaded = self.ready()
        try:
            render = partial(
                loaded.tokenizer.render_chat,
                messages,
                add_generation_prompt=add_generation_prompt,
                variables=variables,
            )
            text = await self.aside(render) if len(messages) > LONG_CHAT else render()
        except ChatTemplateError as error:
            raise ApiError(f"messages: {error}", param="messages") from error
        return await self.encode(text, add_special_tokens=add_special_tokens, param="messages")

    def max_tokens(
        self,
        prompts: Sequence[Sequence[int]],
        prompt_param: str,
        param: str,
        wanted: int | None,
        default: int | None,
        *,
        echo: bool = False,
    ) -> int:
        """How many tokens each answer may have: what was wanted, or what is left but at most `default`.

        Raises:
            ApiError: a prompt is empty or too long for the model or the pool, or `wanted` is too large, or 0
                without `echo`.
        """
        _, loaded = self.ready()
        info = loaded.info
        pool = info.num_blocks * info.block_size
        room = min(info.max_model_len, pool)
        whose = (
            f"the model takes {room:,} tokens"
            if info.max_model_len < pool  # the engine cuts it down to the pool
            else f"the KV cache holds {room:,} tokens ({info.num_blocks:,} blocks of {info.block_size})"
        )
        longest, limit = 0, self.settings.limits.max_prompt_tokens
        for i, prompt in enumerate(prompts):
            where = prompt_param if len(prompts) == 1 else f"{prompt_param}[{i}]"
            if not prompt:
                raise ApiError(f"{where}: has no tokens; at least one is needed", param=prompt_param)
            if limit is not None and len(prompt) > limit:
                raise ApiError(
                    f"{where}: {len(prompt):,} tokens are too many; at most {limit:,} are taken (--max-prompt-tokens)",
                    param=prompt_param,
                    code="context_length_exceeded",
                )
            if len(prompt) >= room:
                raise ApiError(
                    f"{where}: {len(prompt):,} tokens are too many; {whose}, prompt and answer together",
                    param=prompt_param,
                    code="context_length_exceeded",
                )
            longest = max(longest, len(prompt))
        if wanted is None:
            return room - longest if default is None else min(default, room - longest)
        if wanted == 0 and not echo:
            only = " (0 is for echo alone)" if prompt_param == "prompt" else ""
            raise ApiError(f"{param}: must be at least 1{only}", param=param)
        if longest + wanted > room:
            raise ApiError(
                f"{param}: {wanted:,} is too large; {whose}, prompt ({longest:,}) and answer together",
                param=param,
                code="context_length_exceeded",
            )
        return wanted

    async def _resume_metrics(self, metrics: Metrics) -> None:
        # Nothing is left to measure, or the next record asks again.
        with suppress(ApiError, EngineDiedError, CallFailedError):
            client, _ = self.ready()
            snapshot = decode_snapshot(await self.snapshot())
            if client is self.client:  # else it tells of an engine that is gone
                metrics.resume(snapshot)
                if self.observer is not None:
                    self.observer.resume(snapshot)
