"""Builds forebay.json: ``python grafana/make_dashboard.py`` writes it, ``--check`` fails when the committed file is stale.

``charts.py`` says what is shown; here is only how it looks. Needs grafana-foundation-sdk (typed builders for Grafana's own schema);
Grafana upgrades the 10.1 schema written here when it imports the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from charts import ROWS, Chart
from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models import dashboard as model

TARGET = Path(__file__).with_name("forebay.json")
_SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


def build() -> str:
    """The dashboard as JSON text."""
    made = (
        dashboard.Dashboard("Forebay")
        .uid("forebay")
        .description("Is training waiting for data, and if so, why? One row a question.")
        .tags(["forebay"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_choice("job", "Scrape job", "label_values(forebay_build_info, job)"))
        .with_variable(_choice("instance", "Sidecar", 'label_values(forebay_build_info{job=~"$job"}, instance)'))
    )
    number = 0
    for question, charts in ROWS.items():
        made = made.with_row(dashboard.Row(question).id(number := number + 1))
        for chart, width in zip(charts, _widths(len(charts)), strict=True):
            made = made.with_panel(_panel(chart).id(number := number + 1).span(width).height(8))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _widths(count: int) -> list[int]:
    """Two charts beside each other, three in the last line when the number is odd: every line is 24 columns wide."""
    return [12] * count if count % 2 == 0 else [12] * (count - 3) + [8] * 3


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
    for letter, (legend, query) in zip("ABCDEFGH", chart.lines.items(), strict=False):
        panel = panel.with_target(prometheus.Dataquery().ref_id(letter).expr(query).legend_format(legend).range())
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
