"""Builds the dashboard: ``python grafana/make_dashboard.py`` writes forebay.json, ``--check`` fails when the committed file is stale.

``charts.py`` says what is shown; here is only how it looks. Needs grafana-foundation-sdk (typed builders for Grafana's own schema);
Grafana upgrades the 10.1 schema written here when it imports the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from charts import ROWS, STARTS, Chart
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model

TARGET = Path(__file__).parents[1] / "proxy/forebay_proxy/dashboard/forebay.json"  # in the package: `forebay dashboard export`
_HEARD_OF = '{__name__=~"forebay_(reader_wait|rank_metered)_seconds_total",job=~"$job",instance=~"$instance"}'
_SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def build() -> str:
    """The dashboard as JSON text."""
    made = (
        dashboard.Dashboard("Forebay")
        .uid("forebay")
        .description("Is training waiting for data, and if so, why? The first screen answers; the rows below say more.")
        .tags(["forebay"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_choice("job", "Scrape job", "label_values(forebay_build_info, job)"))
        .with_variable(_choice("instance", "Node", 'label_values(forebay_build_info{job=~"$job"}, instance)'))
        .with_variable(_choice("train", "Training job", f"label_values({_HEARD_OF}, exported_job)"))
        .with_variable(
            dashboard.TextBoxVariable("price")
            .label("Price a GB")
            .default_value("0.09")
            .current(model.VariableOption(selected=True, text="0.09", value="0.09"))
        )
        .annotation(
            dashboard.AnnotationQuery().name("Starts of sidecars").datasource(_SOURCE).enable(True).icon_color("purple").expr(STARTS)
        )
    )
    number = y = 0
    for question, charts in ROWS.items():
        row = dashboard.Row(question).id(number := number + 1).grid_pos(model.GridPos(h=1, w=24, x=0, y=y))
        panels = []
        y += 1
        for line in _lines(charts):
            height = max(_height(chart) for chart in line)
            for place, chart in enumerate(line):
                left, right = 24 * place // len(line), 24 * (place + 1) // len(line)
                where = model.GridPos(h=height, w=right - left, x=left, y=y)
                panels.append(_panel(chart).id(number := number + 1).grid_pos(where))
            y += height
        closed = number > len(charts) + 1  # all but the first row
        for panel in panels if closed else ():
            row = row.with_panel(panel)  # which closes it
        made = made.with_row(row)
        for panel in () if closed else panels:
            made = made.with_panel(panel)
        if closed:
            y = row.build().grid_pos.y + 1
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _lines(charts: tuple[Chart, ...]) -> list[tuple[Chart, ...]]:
    """Numbers in a line of their own, then two curves beside each other, three in the last line when they are odd."""
    numbers = tuple(chart for chart in charts if chart.steps)
    curves = tuple(chart for chart in charts if not chart.steps)
    last = 3 if len(curves) % 2 else 0
    pairs = [curves[start : start + 2] for start in range(0, len(curves) - last, 2)]
    return [line for line in (numbers, *pairs, curves[len(curves) - last :] if last else ()) if line]


def _height(chart: Chart) -> int:
    return 4 if chart.steps else 8


def _choice(name: str, label: str, query: str) -> Any:
    everything = model.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def _panel(chart: Chart) -> Any:
    panel = _number(chart) if chart.steps else _curve(chart)
    for letter, (legend, query) in zip("ABCDEFGH", chart.lines.items(), strict=False):
        panel = panel.with_target(prometheus.Dataquery().ref_id(letter).expr(query).legend_format(legend).range())
    return panel


def _number(chart: Chart) -> Any:
    """The last value, large, over its curve of the time shown."""
    steps = [model.Threshold(value=value, color=colour) for value, colour in chart.steps.items()]
    return (
        stat.Panel()
        .title(chart.title)
        .description(chart.help)
        .datasource(_SOURCE)
        .unit(chart.unit)
        .no_value("not known")
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .graph_mode(look.BigValueGraphMode.AREA)
        .color_mode(look.BigValueColorMode.BACKGROUND if len(steps) > 1 else look.BigValueColorMode.VALUE)
        .thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
    )


def _curve(chart: Chart) -> Any:
    panel = (
        timeseries.Panel()
        .title(chart.title)
        .description(chart.help)
        .datasource(_SOURCE)
        .unit(chart.unit)
        .min(0)
        .line_width(1)
        .fill_opacity(40 if chart.stacked else 5)
        .show_points(look.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions().display_mode(look.LegendDisplayMode.LIST).placement(look.LegendPlacement.BOTTOM).show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI).sort(look.SortOrder.DESCENDING))
    )
    if chart.stacked:
        panel = panel.stacking(common.StackingConfig().mode(look.StackingMode.NORMAL).group("A"))
    for limit, colour in chart.limits.items():
        panel = panel.override_by_name(limit, _limit_line(colour))
    if chart.values:
        words = {number: model.ValueMappingResult(text=word) for number, word in chart.values.items()}
        panel = panel.mappings([model.ValueMap(options=words)])
    return panel


def _limit_line(colour: str) -> list[model.DynamicConfigValue]:
    return [
        model.DynamicConfigValue(id_val="custom.stacking", value={"mode": "none", "group": "A"}),
        model.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
        model.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour}),
        model.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [10, 10]}),
    ]


def main(arguments: list[str]) -> int:
    """Write forebay.json, or with ``--check`` only compare; 1 when stale, 2 when called wrongly."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: make_dashboard.py [--check]\n")
        return 2
    wanted = build()
    if not arguments:
        TARGET.write_text(wanted, encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write(f"{TARGET.name} is stale: run `python grafana/make_dashboard.py` and commit the result\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
