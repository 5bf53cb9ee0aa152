"""A run as one page: everything in it, nothing fetched, no script, readable in the dark and on a telephone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import PurePath

from loadgen.results import charts
from loadgen.results.class_tables import class_table
from loadgen.results.cluster_tables import cluster_tables
from loadgen.results.document import Document, Measured, merged, merged_figures
from loadgen.results.server_tables import agreement_table, engines_table, server_latency_table, server_table
from loadgen.results.svg import Chart, draw
from loadgen.results.tables import (
    Table,
    engine_table,
    failure_table,
    goodput_table,
    latency_table,
    outcome_table,
    run_table,
    side_by_side,
    text,
)

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#59636e;--rule:#d5dae0;--card:#f5f7f9;
--a:#0b6bcb;--b:#c2571a;--c:#a8244b;--warn:#fff3cd;--warn-ink:#5c4400}
@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e4e7eb;--soft:#9aa5b1;--rule:#343b44;--card:#1d2127;
--a:#5eb0ff;--b:#f0a060;--c:#ff7d9c;--warn:#4a3b0a;--warn-ink:#ffe9a8}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem 1rem 3rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
h3{font-size:1rem;margin:.8rem 0 .3rem}.soft,small,.caption{color:var(--soft);font-size:.85rem}
.warning{background:var(--warn);color:var(--warn-ink);padding:.6rem .9rem;border-radius:6px;margin:.6rem 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.6rem;margin:1.2rem 0}

.tiles div{overflow-wrap:anywhere;background:var(--card);border-radius:8px;
padding:.6rem .8rem}.tiles b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:0 2rem}
figure{margin:0;background:var(--card);border-radius:8px;padding:.7rem .8rem}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem;font-size:.9rem}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif;fill:var(--soft)}
svg .grid{stroke:var(--rule);stroke-width:.6}svg .axis{stroke:var(--soft)}
svg .a{stroke:var(--a)}svg .b{stroke:var(--b)}svg .c{stroke:var(--c)}svg .limit{stroke:var(--c);stroke-dasharray:6 4}
polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}polyline.b{stroke-dasharray:4 2}
path.dots{stroke-width:3.4;stroke-linecap:round;stroke-opacity:.6}path.b.dots{stroke-width:5;stroke-opacity:.45}
.key{white-space:nowrap;color:var(--soft);font-size:.8rem;margin-left:.8rem}
.key::before{content:"";display:inline-block;width:1.1em;border-top:2px solid;vertical-align:.25em;margin-right:.35em}
.key.b::before{border-top-style:dashed}.key.limit::before{border-top-style:dashed}
.key.dots::before{width:.45em;height:.45em;border:0;border-radius:50%;background:currentColor;vertical-align:.1em}
.key.a::before{color:var(--a)}.key.b::before{color:var(--b)}.key.c::before,.key.limit::before{color:var(--c)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{padding:.22rem .6rem .22rem 0;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top}
td{font-variant-numeric:tabular-nums;white-space:nowrap}thead th{color:var(--soft);font-weight:500}
tbody th,thead th:first-child{text-align:left;font-weight:400}tbody th.sub{padding-left:1.2rem;color:var(--soft)}
table.prose td{text-align:left;white-space:normal;overflow-wrap:anywhere}
.caption{margin:.4rem 0 1rem}ul{padding-left:1.2rem}li{overflow-wrap:anywhere;white-space:pre-wrap}
section{border-top:3px solid var(--rule);margin-top:2.5rem;padding-top:1.5rem}
"""


def page(runs: Sequence[Measured], merge: bool) -> str:
    """The page of one run; of several, as one if `merge`, else one after the other below a table of both."""
    if merge or len(runs) == 1:
        document = merged(runs)
        title = _title(document)
        body = _section(document, runs, "h1")
    else:
        documents = [run.document() for run in runs]
        names = [run.run.path.name for run in runs]
        title = f"{len(runs)} runs: {', '.join(names)}"
        body = f"<h1>{escape(title)}</h1>" + _table(side_by_side(documents, names))
        for document, run in zip(documents, runs, strict=True):
            body += f"<section>{_section(document, [run], 'h1')}</section>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _title(document: Document) -> str:
    return f"{document['label']}: {PurePath(document['settings']['file']).name} on {document['settings']['model']}"


def _section(document: Document, runs: Sequence[Measured], heading: str) -> str:
    settings = document["settings"]
    files = ", ".join(str(run.run.path) for run in runs)
    parts = [
        f"<{heading}>{escape(_title(document))}</{heading}>",
        f'<p class="soft">{escape(settings["started_at"])}, from {escape(files)}</p>',
        *(f'<p class="warning" role="alert">{escape(warning)}</p>' for warning in document["warnings"]),
        _tiles(document),
        "<h2>Latency</h2>",
        _table(latency_table(document), titled=False),
    ]
    if (by_length := class_table(document)) is not None:
        parts.append(_table(by_length))
    parts.append(_charts(charts.percentiles(merged_figures(runs))))
    if len(runs) == 1:
        parts += ["<h2>Over time</h2>", _charts(charts.over_time(runs[0]))]
    stacks = (
        (outcome_table(document), failure_table(document), goodput_table(document), agreement_table(document)),
        (engine_table(document), server_table(document), engines_table(document), server_latency_table(document)),
    )
    drawn = ("".join(_table(table) for table in stack if table is not None) for stack in stacks)
    parts += ["<h2>Figures</h2>", f'<div class="tables">{"".join(f"<div>{stack}</div>" for stack in drawn)}</div>']
    if of_cluster := cluster_tables(document):
        parts += ["<h2>The cluster</h2>", *map(_table, of_cluster)]
    if len(runs) == 1 and (memory := _charts(charts.engine(runs[0]))):
        parts += ["<h2>The engine over time</h2>", memory]
    parts += ["<h2>Run</h2>", _table(run_table(document), titled=False)]
    if document["notes"]:
        notes = "".join(f"<li>{escape(note)}</li>" for note in document["notes"])
        parts += ["<h2>Notes</h2>", f"<ul>{notes}</ul>"]
    return "\n".join(parts)


def _tiles(document: Document) -> str:
    """What most ask first."""
    summary = document["summary"]
    tiles = [
        (f"{summary['completed']:,} of {summary['turns']:,}", "turns completed"),
        (text(summary["output_throughput"]), "output tokens/s"),
        (text(summary["request_throughput"]), "turns/s"),
        *(
            (f"{text(summary[f'p50_{name}_ms'])} / {text(summary[f'p99_{name}_ms'])}", f"{title}, p50 / p99 (ms)")
            for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E"))
        ),
    ]
    if summary["slo"]:
        tiles.append((text(summary["slo_attainment"], "attainment"), f"within {document['settings']['slo']}"))
        tiles.append((text(summary["goodput"]), "goodput (requests/s)"))
    return (
        '<div class="tiles">'
        + "".join(f"<div><b>{escape(value)}</b><small>{escape(name)}</small></div>" for value, name in tiles)
        + "</div>"
    )


def _charts(drawn: Iterable[Chart]) -> str:
    figures = "".join(draw(chart) for chart in drawn)
    return f'<div class="charts">{figures}</div>' if figures else ""


def _table(table: Table, titled: bool = True) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    rows = "".join(_row(row) for row in table.rows)
    title = f"<h3>{escape(table.title)}</h3>" if titled else ""
    caption = f'<p class="caption">{"<br>".join(map(escape, table.caption))}</p>' if table.caption else ""
    kind = ' class="prose"' if table.prose else ""
    return f'{title}<div class="scroll"><table{kind}>{head}<tbody>{rows}</tbody></table></div>{caption}'


def _row(row: Sequence[str]) -> str:
    name, *cells = row
    sub = ' class="sub"' if name.startswith(" ") else ""
    data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row"{sub}>{escape(name.strip())}</th>{data}</tr>'
