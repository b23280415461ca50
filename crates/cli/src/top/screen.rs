//! The drawing of the screen. Text that does not fit is cut.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Wrap};
use weir_config::PortName;
use weir_switch::explain::{Explanation, QueueExplanation};
use weir_switch::stats::{PortKind, PortState, PortStats, SessionStats, Times};
use weir_text::plain::plain_short;
use weir_text::{Table, ago, count, decimal, time, uptime};

use super::columns::{Column, PortRates, Rates, fitting, number};
use super::state::{Page, State};
use crate::show::vlan;

/// The colour of losses: dropped frames, missed deadlines, and a weir that does not answer.
const BAD: Color = Color::Red;
const WARNING: Color = Color::Yellow;

const HELP: &str = "\
up, down, page up, page down, home, end   select a port (k, j, g, G)
left, right                               sort by the column beside (<, >)
r                                         reverse the order
/                                         show names that contain a text; Esc shows all
Enter                                     details of the selected port
space                                     look now
?, h                                      this page
Esc                                       back
q, Ctrl-C                                 quit

Directions are the guest's: it receives RX and sends TX.

CPU %         worker time for what a port sends, of one core
HOLD          how long interrupts of the guest were held since the last look, on average
BUDGET        its latency budget; sorting by HOLD sorts by HOLD / BUDGET
LATE/S        interrupts later than the budget allows
DROP REASON   the counter with the most frames; `was` where none was dropped since the last look
HELD BECAUSE  the last decision of the interface's policy

The guide (counters.md) says what the names mean.";

/// The whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    draw_head(frame, head, state);
    match state.page.clone() {
        Page::List => draw_list(frame, body, state),
        Page::Port(name) => draw_port(frame, body, state, &name),
        Page::Help => draw_text(frame, body, state, HELP),
    }
    frame.render_widget(keys(state), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Rates { version, uptime_s, workers, workers_cpu_percent, ports, .. } = &state.rates;
    let running = ports.iter().filter(|port| port.state == PortState::Running).count();
    let name = " weir top ";
    let width = usize::from(area.width);
    let up = format!(" weir {version}, up {}", uptime(*uptime_s));
    let ports = format!("{}, {running} running", count(ports.len(), "port"));
    let work = format!("{} at {workers_cpu_percent:.0} %", count(*workers, "worker"));
    let all = [format!("{up}, {ports}, {work}"), format!(" {ports}, {work}"), format!(" {ports}")];
    let title = first_that_fits(all, width.saturating_sub(name.len()));
    let title = Line::from(vec![name.bold().reversed(), title.into()]);
    let rates = &state.rates;
    let second = match &state.lost {
        Some(error) => {
            let text = format!("{error}; trying again. What follows is what it said last.");
            Line::from(text).fg(BAD).bold()
        }
        None if rates.interval_s <= 0.0 => Line::from("rates come with the second look").dim(),
        None => {
            let packets = number(rates.sum(|it| it.tx.packets_per_s));
            let bits = number(rates.sum(|it| it.tx.bits_per_s));
            let drops = number(rates.sum(PortRates::all_drops_per_s));
            let late = number(rates.sum(|it| it.breaches_per_s));
            let bad = format!("dropped {drops}/s, late {late}/s");
            let all = [
                format!(
                    "sent {packets} packets/s, {bits} bit/s; dropped {drops}/s; late interrupts {late}/s"
                ),
                format!("{packets} packets/s, {bits} bit/s, {bad}"),
                bad,
            ];
            Line::from(first_that_fits(all, width))
        }
    };
    frame.render_widget(Text::from(vec![title, second]), area);
}

/// The first of several texts that fits; the last one if none does.
fn first_that_fits<const N: usize>(ways: [String; N], width: usize) -> String {
    let fits = ways.iter().position(|way| way.chars().count() <= width).unwrap_or(N - 1);
    ways.into_iter().nth(fits).unwrap_or_default()
}

fn keys(state: &State) -> Line<'static> {
    if state.editing {
        return Line::from(format!("names with: {}_", state.filter)).bold();
    }
    let said = |is: bool, what: String| if is { what } else { String::new() };
    let filter = said(!state.filter.is_empty(), format!("names with `{}`  ", state.filter));
    // The place is shown only if some ports are off the screen.
    let listed = state.listed();
    let [at, all] = [state.place(&listed) + 1, listed.len()].map(|number| decimal(number as u64));
    let is_more = state.page == Page::List && listed.len() > state.page_lines;
    let place = said(is_more, format!("{at} of {all}  "));
    let keys = match state.page {
        Page::List => "q quit  ? help  Enter details  / filter  left, right sort  r reverse",
        Page::Port(_) | Page::Help => "q quit  ? help  Esc back  up, down scroll",
    };
    Line::from(vec![place.bold(), filter.bold(), keys.dim()])
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, state: &mut State) {
    let [header, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let lines = usize::from(body.height);
    let listed = state.listed();
    let longest = listed.iter().map(|port| port.name.as_str().len()).max().unwrap_or(0);
    let columns = fitting(usize::from(area.width), longest);
    frame.render_widget(headers(&columns, state.sort), header);
    let place = state.place(&listed);
    // The list scrolls just enough to show the selected port.
    let first = state.first.min(place).max((place + 1).saturating_sub(lines));
    let first = first.min(listed.len().saturating_sub(lines));
    let stale = state.lost.is_some();
    let rows = listed.iter().enumerate().skip(first).take(lines);
    let rows: Vec<_> = rows.map(|(at, port)| row(&columns, port, at == place, stale)).collect();
    let text = match (rows.is_empty(), state.filter.is_empty()) {
        (false, _) => Text::from(rows),
        (true, true) => Text::from("no ports; add one with `weir vif add NAME`"),
        (true, false) => Text::from("no name has this text"),
    };
    frame.render_widget(text, body);
    (state.first, state.page_lines) = (first, lines.max(1));
    state.columns = columns.into_iter().map(|(column, _)| column).collect();
}

fn headers(columns: &[(Column, usize)], sort: Column) -> Line<'static> {
    let mut spans = Vec::new();
    for (column, width) in columns {
        let style = match *column == sort {
            true => Style::new().bold().reversed(),
            false => Style::new().bold(),
        };
        spans.push(Span::styled(fit(column.header(), *width, column.is_text()), style));
        spans.push(" ".into());
    }
    Line::from(spans)
}

fn row(
    columns: &[(Column, usize)],
    port: &PortRates,
    selected: bool,
    stale: bool,
) -> Line<'static> {
    let mut spans = Vec::new();
    for (column, width) in columns {
        let text = fit(&column.cell(port), *width, column.is_text());
        spans.push(Span::styled(text, style(*column, port)));
        spans.push(" ".into());
    }
    let modifiers = match (selected, stale) {
        (true, _) => Modifier::REVERSED,
        (false, true) => Modifier::DIM,
        (false, false) => Modifier::empty(),
    };
    Line::from(spans).style(Style::new().add_modifier(modifiers))
}

fn style(column: Column, port: &PortRates) -> Style {
    let near = |ns: u64| ns.saturating_mul(10) > port.latency_budget_ns.saturating_mul(9);
    let is_vif = port.kind == PortKind::Vif;
    match column {
        Column::State if port.state == PortState::Stopped => Style::new().fg(BAD),
        Column::State if port.state != PortState::Running => Style::new().dim(),
        Column::Drops if !port.drops_per_s.is_empty() => Style::new().fg(BAD),
        Column::Reason if port.drops_per_s.is_empty() => Style::new().dim(),
        Column::Late if port.breaches_per_s > 0.0 => Style::new().fg(BAD),
        Column::Hold if is_vif && port.hold_ns.is_some_and(near) => Style::new().fg(WARNING),
        _ => Style::new(),
    }
}

/// `text` in `width` characters, cut or filled.
fn fit(text: &str, width: usize, left: bool) -> String {
    let cut: String = match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.into(),
    };
    if left { format!("{cut:<width$}") } else { format!("{cut:>width$}") }
}

fn draw_port(frame: &mut Frame<'_>, area: Rect, state: &mut State, name: &PortName) {
    let look = state.look.as_ref();
    let stats = look.and_then(|look| look.stats.ports.iter().find(|port| port.name == *name));
    let rates = state.rates.ports.iter().find(|port| port.name == *name);
    let text = match (stats, rates) {
        (Some(stats), Some(rates)) => {
            let explained = look.and_then(|look| look.explained.as_ref());
            let head = format!("{name}: {}, VLAN {}\n\n", stats.state, vlan(stats));
            head + &details(stats, rates, explained)
        }
        _ => format!("{name} is no port of this switch any more"),
    };
    draw_text(frame, area, state, &text);
}

fn draw_text(frame: &mut Frame<'_>, area: Rect, state: &mut State, text: &str) {
    let width = usize::from(area.width).max(1);
    // Wrapping at words can make more lines than are counted here. The last lines can still be reached.
    let lines: usize = text.lines().map(|line| line.chars().count().div_ceil(width).max(1)).sum();
    state.page_lines = usize::from(area.height).max(1);
    state.scrolled = state.scrolled.min(lines.saturating_sub(1));
    let scrolled = u16::try_from(state.scrolled).unwrap_or(u16::MAX);
    let style = if state.lost.is_some() { Style::new().dim() } else { Style::new() };
    let page = Paragraph::new(text.to_owned()).style(style).wrap(Wrap { trim: false });
    frame.render_widget(page.scroll((scrolled, 0)), area);
}

/// The details of a port.
fn details(port: &PortStats, rates: &PortRates, explained: Option<&Explanation>) -> String {
    let mut text = String::new();
    write(&mut text, port, rates, explained).expect("writing to a string cannot fail");
    text
}

fn write(
    f: &mut String,
    port: &PortStats,
    rates: &PortRates,
    explained: Option<&Explanation>,
) -> fmt::Result {
    flows(f, port, rates)?;
    if port.kind == PortKind::Vif {
        calls(f, port, rates)?;
    }
    // The explanation may still be that of the port that was shown before.
    if let Some(Explanation::Vif(explained)) = explained
        && explained.name == port.name
    {
        queues(f, &explained.queues)?;
    }
    reasons(f, "dropped", &port.drops, |reason| rates.drops_per_s.get(reason).copied())?;
    reasons(f, "notified too late", &port.budget_breaches, |_| None)?;
    if let Some(reason) = &port.stopped_reason {
        writeln!(f, "\nstopped: {}", plain_short(reason))?;
    }
    let SessionStats { opened, failed, last_error, last_error_s, .. } = &port.sessions;
    if *failed > 0 {
        let (error, ago) = (last_error.as_deref().unwrap_or("unknown"), ago(*last_error_s));
        let error = plain_short(error);
        writeln!(f, "\nfront ends: {opened} came, {failed} failed; the last error{ago}: {error}")?;
    }
    for (name, limit) in &port.limits {
        let (used, max) = (decimal(limit.used), decimal(limit.max));
        writeln!(f, "limit {name}: {used} of {max} ({}%)", limit.percent())?;
    }
    let name = &port.name;
    writeln!(f, "\nmore: weir explain {name}; weir capture {name}; weir capture {name} --drops")
}

fn flows(f: &mut String, port: &PortStats, rates: &PortRates) -> fmt::Result {
    let mut table = Table::new(&["<", "PACKETS/S", "BIT/S", "PACKETS", "BYTES"]);
    for (what, flow, sum) in [("receives", rates.rx, port.rx), ("sends", rates.tx, port.tx)] {
        table.row(vec![
            what.into(),
            number(flow.packets_per_s),
            number(flow.bits_per_s),
            decimal(sum.frames),
            weir_text::bytes(sum.bytes),
        ]);
    }
    write!(f, "{table}")?;
    let cpu = rates.cpu_percent;
    writeln!(f, "worker time for what it sends: {cpu:.1} % of a core, {}", time(port.worker_ns))
}

fn calls(f: &mut String, port: &PortStats, rates: &PortRates) -> fmt::Result {
    if let Some(calls) = port.calls {
        writeln!(f, "\nmoderation {}, budget {}", calls.moderation, time(port.latency_budget_ns))?;
    }
    if let Some(decision) = &port.decision {
        writeln!(f, "holds for {} now: {}", time(decision.hold_ns), decision.reason)?;
    }
    let mut table = Table::new(&["<", "NOW", "P50", "P99", "MAX", "SAMPLES"]);
    for (what, now, all) in [
        ("hold", rates.hold_ns, port.hold_ns),
        ("arrival to interrupt", rates.latency_ns, port.latency_ns),
    ] {
        let Times { count, p50, p99, max, .. } = all;
        let mut cells = vec![what.to_owned(), now.map_or_else(|| "-".into(), time)];
        cells.extend([p50, p99, max].map(time));
        cells.push(decimal(count));
        table.row(cells);
    }
    write!(f, "{table}")?;
    writeln!(f, "interrupts/s: {}, jitter {}", number(rates.calls_per_s), time(port.jitter_ns))
}

fn queues(f: &mut String, queues: &[QueueExplanation]) -> fmt::Result {
    let mut table = Table::new(&["QUEUE", "HOLDS", "LIMIT", "HELD P99", "FRAMES", "<BECAUSE"]);
    for queue in queues {
        table.row(vec![
            queue.queue.to_string(),
            time(queue.hold_ns),
            time(queue.hold_ns_max),
            time(queue.held_ns.p99),
            decimal(queue.frames),
            queue.reason.clone(),
        ]);
    }
    write!(f, "\n{table}")
}

/// Counts by reason, those that are not zero.
fn reasons(
    f: &mut String,
    what: &str,
    counts: &BTreeMap<String, u64>,
    rate: impl Fn(&str) -> Option<f64>,
) -> fmt::Result {
    let counted = || counts.iter().filter(|(_, count)| **count > 0);
    if counted().next().is_none() {
        return writeln!(f, "\n{what}: none");
    }
    writeln!(f, "\n{what}:")?;
    for (reason, count) in counted() {
        let rate = rate(reason).map_or(String::new(), |rate| format!(", {}/s now", number(rate)));
        writeln!(f, "  {reason}: {}{rate}", decimal(*count))?;
    }
    Ok(())
}
