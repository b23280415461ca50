//! The live display.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Padding, Paragraph, Row, Sparkline, Table};
use ratatui::{DefaultTerminal, Frame};
use weir_text::{decimal, time};

use super::phase::Traffic;
use super::phase::{DemoError, Progress, View};
use super::phase::{Sample, or_dash};
use super::report::lost_reordered;

/// Window of the changing figures.
const WINDOW: Duration = Duration::from_secs(1);
/// Largest width of the display. On a wider one, figures would be far apart.
const WIDTH_MAX: u16 = 120;
/// Largest height of the graph (lines).
const GRAPH_HEIGHT_MAX: u16 = 16;
/// Width of the left list of figures (columns).
const LEFT_WIDTH: u16 = 40;
/// Colour of the present phase.
const LIVE: Color = Color::Cyan;
/// Colour of a phase that ended well.
const DONE: Color = Color::Green;

/// Returns true if keys can be read: standard input is a terminal.
pub(super) fn has_keyboard() -> bool {
    io::stdin().is_terminal()
}

/// The terminal, on its alternate screen and in raw mode until dropped.
pub(super) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal. A panic of any thread restores it first.
    pub(super) fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Self { terminal })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

impl View for Screen {
    fn show(&mut self, progress: &Progress<'_>) -> Result<(), DemoError> {
        let drawn = self.terminal.draw(|frame| draw(frame, progress));
        drawn.map(|_| ()).map_err(DemoError::Terminal)
    }

    fn wait(&mut self, time: Duration) -> Result<bool, DemoError> {
        let start = Instant::now();
        loop {
            let left = time.saturating_sub(start.elapsed());
            if !event::poll(left).map_err(DemoError::Terminal)? {
                return Ok(false);
            }
            if let Event::Key(key) = event::read().map_err(DemoError::Terminal)?
                && asks_for_the_end(key)
            {
                return Ok(true);
            }
        }
    }
}

/// Returns true if the key ends the demo. In raw mode Ctrl-C is an ordinary key.
fn asks_for_the_end(key: KeyEvent) -> bool {
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
            _ => false,
        }
}

pub(super) fn draw(frame: &mut Frame<'_>, progress: &Progress<'_>) {
    let area = frame.area();
    let area = Rect { width: area.width.min(WIDTH_MAX), ..area };
    let done = u16::try_from(progress.plan.len()).unwrap_or(u16::MAX);
    let [head, graph, figures, results, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Max(GRAPH_HEIGHT_MAX),
        Constraint::Length(5),
        Constraint::Length(done.saturating_add(2)),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, progress);
    draw_graph(frame, graph, progress);
    draw_figures(frame, figures, progress);
    draw_results(frame, results, progress);
    let keys = Line::from(" Ctrl-C ends it here and prints what was measured").dim();
    frame.render_widget(keys, foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, progress: &Progress<'_>) {
    let [title, clock] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(14)]).areas(area);
    let name = Line::from(vec![
        " weir demo ".bold().reversed(),
        "  two guests, one switch, every packet copied once".into(),
    ]);
    frame.render_widget(name, title);
    let text = format!("{} s of {} s ", progress.elapsed.as_secs(), progress.total.as_secs());
    frame.render_widget(Line::from(text).right_aligned(), clock);
}

/// Draws the phase's main figure over time. The graph fills the width when the phase ends.
fn draw_graph(frame: &mut Frame<'_>, area: Rect, progress: &Progress<'_>) {
    let phase = progress.phase();
    let metric = Metric::of(phase.traffic);
    let window = progress.before(WINDOW).until(&progress.now());
    let title = Line::from(vec![
        Span::from(format!(" {}: ", phase.traffic.name())).bold().fg(LIVE),
        Span::from(format!("{} ", phase.traffic.about())),
    ]);
    let value = Line::from(format!(" {} ", metric.text(&window))).bold();
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().dim())
        .padding(Padding::horizontal(1))
        .title(title)
        .title_bottom(value.right_aligned());
    let inner = block.inner(area);
    let bars = bars(progress.samples, phase.duration, inner.width, metric);
    let peak = bars.iter().flatten().copied().max().unwrap_or(0);
    let graph = Sparkline::default()
        .data(bars)
        // Some room stays above, so that a steady rate does not fill the whole graph.
        .max(peak.saturating_add(peak / 4).max(1))
        .style(Style::new().fg(LIVE))
        .absent_value_symbol(" ");
    frame.render_widget(block, area);
    frame.render_widget(graph, inner);
}

/// The main figure of a kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metric {
    GbitPerS,
    PacketsPerS,
}

impl Metric {
    fn of(traffic: Traffic) -> Self {
        match traffic {
            Traffic::Bulk => Self::GbitPerS,
            Traffic::Flood | Traffic::Paced | Traffic::RequestResponse => Self::PacketsPerS,
        }
    }

    fn text(self, figures: &Sample) -> String {
        match self {
            Self::GbitPerS => match figures.gbit_per_s() {
                rate if rate < 1.0 => format!("{rate:.3} Gbit/s"),
                rate => format!("{rate:.1} Gbit/s"),
            },
            Self::PacketsPerS => format!("{} packets/s", decimal(figures.packets_per_s())),
        }
    }

    /// Returns the height of a bar, in its own unit.
    fn height(self, figures: &Sample) -> u64 {
        match self {
            Self::GbitPerS => (figures.gbit_per_s() * 1e3) as u64,
            Self::PacketsPerS => figures.packets_per_s(),
        }
    }
}

/// Returns `width` bars for the whole `duration`, without bars for the future.
fn bars(samples: &[Sample], duration: Duration, width: u16, metric: Metric) -> Vec<Option<u64>> {
    let rates: Vec<(Duration, u64)> = samples
        .windows(2)
        .filter_map(|pair| match pair {
            [from, to] => Some((to.at, metric.height(&from.until(to)))),
            _ => None,
        })
        .collect();
    (0..u32::from(width))
        .map(|bar| {
            let at = duration * bar / u32::from(width);
            let next = rates.iter().find(|(until, _)| *until > at);
            next.map(|(_, rate)| *rate)
        })
        .collect()
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, progress: &Progress<'_>) {
    let figures = progress.before(WINDOW).until(&progress.now());
    let [left, right] =
        Layout::horizontal([Constraint::Length(LEFT_WIDTH), Constraint::Fill(1)]).areas(area);
    let percent = |cpus: f64| format!("{:.0}%", cpus * 100.0);
    let latency = figures
        .latency
        .map_or_else(|| "-".into(), |latency| quantiles(latency.p50_ns, latency.p99_ns));
    let what = progress.phase().traffic.latency();
    figure_list(
        frame,
        left,
        [
            ("throughput", Metric::GbitPerS.text(&figures)),
            ("packets", Metric::PacketsPerS.text(&figures)),
            (
                "calls per packet",
                or_dash(figures.calls_per_packet(), |calls| format!("{calls:.3}")),
            ),
            ("lost, reordered", lost_reordered(&figures)),
        ],
    );
    figure_list(
        frame,
        right,
        [
            ("hold time", quantiles(figures.hold.p50, figures.hold.p99)),
            (what, latency),
            ("switch CPU", percent(figures.switch_cpus())),
            ("guests CPU", percent(figures.guests_cpus())),
        ],
    );
}

fn quantiles(p50_ns: u64, p99_ns: u64) -> String {
    format!("p50 {}, p99 {}", time(p50_ns), time(p99_ns))
}

fn figure_list(frame: &mut Frame<'_>, area: Rect, list: [(&'static str, String); 4]) {
    let width = 2 + list.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<Line<'_>> = list
        .into_iter()
        .map(|(name, value)| Line::from(vec![format!("  {name:<width$}").dim(), value.bold()]))
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// Draws the phases: finished, present, and future.
fn draw_results(frame: &mut Frame<'_>, area: Rect, progress: &Progress<'_>) {
    let rows = progress.plan.iter().enumerate().map(|(index, phase)| {
        let outcome = progress.outcomes.iter().find(|outcome| outcome.phase == *phase);
        let (mark, color, figures) = match (outcome, progress.samples) {
            (Some(outcome), _) => ("✓", DONE, Some(outcome.figures.clone())),
            (None, [first, .., last]) if index == progress.current => {
                ("▶", LIVE, Some(first.until(last)))
            }
            (None, _) => ("·", Color::Reset, None),
        };
        let mut cells =
            vec![Line::from(format!(" {mark}")).fg(color), Line::from(phase.traffic.name())];
        cells.extend(figures.iter().flat_map(result_cells));
        Row::new(cells)
    });
    let header =
        ["", "", "Gbit/s", "packets/s", "calls/pkt", "hold p50", "latency p50", "switch CPU"];
    let header = Row::new(header.map(|text| Line::from(text).right_aligned())).dim();
    let widths = [2, 13, 7, 10, 9, 8, 11, 10].map(Constraint::Length);
    frame.render_widget(Table::new(rows, widths).header(header), area);
}

fn result_cells(figures: &Sample) -> [Line<'static>; 6] {
    let latency = figures.latency.map_or_else(|| "-".into(), |latency| time(latency.p50_ns));
    [
        format!("{:.3}", figures.gbit_per_s()),
        decimal(figures.packets_per_s()),
        or_dash(figures.calls_per_packet(), |calls| format!("{calls:.3}")),
        time(figures.hold.p50),
        latency,
        format!("{:.2} s", figures.switch_cpu_s()),
    ]
    .map(|cell| Line::from(cell).right_aligned())
}
