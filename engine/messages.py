"""What the API process and the core process say to each other: msgpack frames, no pickle."""

from __future__ import annotations

import msgspec

from engine.config import EngineConfig
from engine.kv_endpoint import KvPublishing
from engine.plan import ScoredToken
from engine.protocol import Control, EngineInfo, FinishReason
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.transfer.offer import Compatibility, Offer, PoolPlace


class Start(msgspec.Struct, frozen=True, tag=True):
    """The first frame: load the model and answer `Ready` or `Fatal`."""

    config: EngineConfig


class Add(msgspec.Struct, frozen=True, tag=True):
    """Start a request, and `siblings` that answer the same prompt: it is computed once, and they are forked off.

    Sibling i (from 1) draws with seed + i. With `sampling.beam` they are the other beams, and only `request` reports.
    `arrived`: when it was sent, on the machine's monotonic clock. The core reads between two steps, and what a request
    waits for that counts too.

    With `hand_over` the prompt is computed here and the first tokens are drawn, and then it goes on elsewhere: the
    request's last `Output` has the offer. Whoever goes on, there or after an engine's death, tells what there is:
    `generated` has the tokens of the request and of each sibling so far, `places` the place of each in its family,
    where some have ended (their seeds follow from it); `offer` where KV can be had (without one it is computed again).
    """

    request: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    scheduling: SchedulingParams = SchedulingParams()
    siblings: tuple[str, ...] = ()
    arrived: float | None = None
    hand_over: bool = False
    offer: Offer | None = None
    generated: tuple[tuple[int, ...], ...] = ()
    places: tuple[int, ...] = ()


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End requests; `reason` is `stop` when the API process matched a stop string."""

    requests: tuple[str, ...]
    reason: FinishReason


class SetControl(msgspec.Struct, frozen=True, tag=True):
    call: int
    control: Control


class GetSnapshot(msgspec.Struct, frozen=True, tag=True):
    call: int


class ListRequests(msgspec.Struct, frozen=True, tag=True):
    """The reply's JSON is a protocol.LiveRequests."""

    call: int


class GetRequestTokens(msgspec.Struct, frozen=True, tag=True):
    """The reply's JSON is a RequestTokens from place `first` on, with up to `before` tokens before that; an error
    if no such request lives."""

    call: int
    request: str
    first: int
    before: int


class GetBlockTokens(msgspec.Struct, frozen=True, tag=True):
    """The reply's JSON is a BlockTokens, with up to `before` tokens before its own. The pool has the block."""

    call: int
    block: int
    before: int


class ClearCache(msgspec.Struct, frozen=True, tag=True):
    """Forget every cached prefix; the reply's JSON is the number of blocks forgotten."""

    call: int


class Release(msgspec.Struct, frozen=True, tag=True):
    """Whoever was offered these leases reads their blocks no more. Unknown ones, which have expired, are left alone."""

    leases: tuple[str, ...]


class Pulled(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Pull`: the blocks are filled, or `error` says why not. Nothing touches them any more.

    `lease` is that of the `Pull`'s offer: an answer that comes twice ends no later transfer of the same request.
    """

    request: str
    lease: str
    error: str = ""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    pass


class Located(msgspec.Struct, frozen=True, tag=True):
    """The model's files are on this machine: the API process can load the tokenizer while weights are loaded."""

    folder: str
    vocab_size: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """`kv_events`: where they are published, with the ports that were free."""

    engine: EngineInfo
    control: Control
    kv_events: KvPublishing | None = None
    compatibility: Compatibility | None = None  # of an engine that can hand over, or take over


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start or go on: `message` tells a person; `unusable` is a bad setting, not a crash.

    `crash_file` is where its last steps lie, if anywhere: not for clients, who need not know this machine's folders.
    """

    message: str
    unusable: bool
    crash_file: str = ""


class BeamOutput(msgspec.Struct, frozen=True):
    """One sequence of a beam search, finished or (its reason says so) cut short.

    `score` is `logprob` (the sum) over length**length_penalty.
    """

    token_ids: tuple[int, ...]
    logprob: float
    score: float
    finished: FinishReason
    stop_token: int | None = None


class Output(msgspec.Struct, frozen=True, tag=True, gc=False, omit_defaults=True):
    """One request's news of one step: a token, an end, or both. `error` explains reason `error`."""

    request: str
    token_id: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finished: FinishReason | None = None
    stop_token: int | None = None  # the token id that stopped it, if one did
    cached_tokens: int = 0  # prompt tokens found in the prefix cache when it first ran
    error: str | None = None
    refused: bool = False  # it never entered the queue: the request is to blame, not the engine
    unavailable: bool = False  # the engine's process died: another one will serve in a moment
    prompt_start: int = 0  # the place in the prompt of the first of `prompt_logprobs`
    prompt_logprobs: tuple[ScoredToken, ...] = ()
    beams: tuple[BeamOutput, ...] = ()  # with the end of a beam search, best first
    offer: Offer | None = None  # with the end of a request that was to be handed over, and is not over


class Taken(msgspec.Struct, frozen=True, tag=True):
    """This engine reads an offer's blocks no more: it has them, gave up, or never began. `error`: it does without."""

    request: str
    lease: str
    blocks: int = 0  # that were moved
    nbytes: int = 0
    waited: float = 0.0  # seconds until it had blocks for it
    moved: float = 0.0  # seconds from then on
    error: str = ""


class Pull(msgspec.Struct, frozen=True, tag=True):
    """Whoever started this engine is to fill blocks of `into` with another engine's, which is on another host.

    Each pair is (block of the offer's pool, block of `into`). Answered by `Pulled`, always.
    """

    request: str
    offer: Offer
    into: PoolPlace
    pairs: tuple[tuple[int, int], ...]


class KvNews(msgspec.Struct, frozen=True, tag=True):
    """What one step changed in the prefix cache, for the router: names of blocks as `engine.kv_events.event_hash` makes
    them. `cleared` came first, then `removed`, then `stored`."""

    stored: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    cleared: bool = False


class Outputs(msgspec.Struct, frozen=True, tag=True):
    outputs: tuple[Output, ...]


class Step(msgspec.Struct, frozen=True, tag=True):
    """A record, already as the JSON that subscribers get."""

    seq: int
    json: bytes


class TokensAfter(msgspec.Struct, frozen=True):
    """Some tokens of a text, and those right before them, whose bytes the first of them may go on from."""

    tokens: tuple[int, ...]
    before: tuple[int, ...]
    begins: bool  # the text begins with `before`, or with `tokens` if that is empty


class RequestTokens(msgspec.Struct, frozen=True):
    """See protocol.RequestText; `first` is the place of the first of `part`'s tokens."""

    prompt_tokens: int
    first: int
    part: TokensAfter


class BlockTokens(msgspec.Struct, frozen=True):
    """See protocol.BlockText."""

    hash: str | None
    parent_hash: str | None
    part: TokensAfter


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Answer to a call: JSON, or `error`; `seq` is the first record in which it holds. `failed`: it is the engine, not
    the caller, that is to blame."""

    call: int
    seq: int
    json: bytes = b""
    error: str | None = None
    failed: str = ""


Call = SetControl | GetSnapshot | ListRequests | GetRequestTokens | GetBlockTokens | ClearCache
ToCore = Start | Add | Abort | Release | Pulled | Call | Shutdown
FromCore = Located | Ready | Fatal | Outputs | Taken | Pull | KvNews | Step | Reply
