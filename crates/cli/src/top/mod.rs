//! `weir top`: traffic, hold times and drops, with reasons.
//!
//! | file | content |
//! |---|---|
//! | `columns.rs` | the rates between two looks at the switch, the columns of the list, and its order |
//! | `state.rs` | the state of the screen, the effect of keys, and the thread that asks weir |
//! | `screen.rs` | the drawing of the list, and of one port in lines |

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGINT, SIGTERM};
use weir_config::Defaults;
use weir_text::plain::{Obeyed, Plain};
use weir_text::{Table, uptime};

use crate::args::TopArgs;
use crate::commands::CommandError;

mod columns;
mod screen;
mod state;

#[cfg(test)]
mod tests;

pub use columns::Column;

use columns::Rates;
use state::{Asker, Next, State, listed, look};

/// The longest delay in handling keys, signals and answers.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// The longest delay while an answer is due.
const ANSWER_LOOK: Duration = Duration::from_millis(20);

/// `weir top`
///
/// # Errors
/// [`CommandError::Client`] if the first request fails; without a terminal also if a later one does.
pub fn run(args: &TopArgs, defaults: &Defaults, out: &mut dyn Write) -> Result<(), CommandError> {
    let plain = args.once || args.json || !is_usable_terminal();
    if plain {
        return run_plain(args, defaults, out);
    }
    let control = defaults.control.as_path();
    // If no weir runs, the command reports that and ends. If weir ends later, it may come back.
    let first = look(control, None)?;
    let mut state = State::new(args);
    state.looked(Ok(first));
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let mut screen = Screen::open()?;
    watch(&mut screen.terminal, &mut state, &Asker::start(control)?, &ended)?;
    Ok(())
}

/// True if the terminal can show a screen and read keys.
fn is_usable_terminal() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    !dumb && io::stdout().is_terminal() && io::stdin().is_terminal()
}

/// The terminal, on its alternate screen and in raw mode until the value is dropped.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes over the terminal. A panic restores it first.
    fn open() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Self { terminal })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws and asks until a key or a signal ends it.
fn watch(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    asker: &Asker,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut due = Instant::now() + state.interval;
    let mut asked = false;
    loop {
        terminal.draw(|frame| screen::draw(frame, state))?;
        loop {
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            let now = Instant::now();
            if !asked && now >= due {
                asker.ask(state.explained());
                (asked, due) = (true, now + state.interval);
            }
            let wait = match asked {
                true => ANSWER_LOOK,
                false => due.saturating_duration_since(now).min(LOOK_MAX),
            };
            let mut changed = false;
            if event::poll(wait)? {
                match handle(event::read()?, state) {
                    Next::End => return Ok(()),
                    Next::Ask => due = Instant::now(),
                    Next::Draw => {}
                }
                changed = true;
            }
            if let Some(answer) = asker.answer() {
                asked = false;
                state.looked(answer);
                changed = true;
            }
            if changed {
                break;
            }
        }
    }
}

fn handle(event: Event, state: &mut State) -> Next {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => state.key(key),
        // A change of size needs a new drawing.
        _ => Next::Draw,
    }
}

/// Prints once, or repeatedly until the reader stops or weir ends.
fn run_plain(args: &TopArgs, defaults: &Defaults, out: &mut dyn Write) -> Result<(), CommandError> {
    let control = defaults.control.as_path();
    let mut out = Plain::new(out, Obeyed::Lines);
    let mut before = look(control, None)?.stats;
    loop {
        thread::sleep(Duration::from_secs(args.interval.into()));
        let now = look(control, None)?.stats;
        let mut rates = Rates::between(Some(&before), &now);
        before = now;
        let chosen = listed(&rates, args.filter.as_deref().unwrap_or(""), args.sort, false);
        let chosen = chosen.into_iter().cloned().collect();
        match (args.json, args.once) {
            (true, once) => {
                rates.ports = chosen;
                match once {
                    true => serde_json::to_writer_pretty(&mut out, &rates),
                    false => serde_json::to_writer(&mut out, &rates),
                }
                .map_err(io::Error::from)?;
                writeln!(out)?;
            }
            (false, _) => {
                write!(out, "{}", head(&rates))?;
                rates.ports = chosen;
                writeln!(out, "{}", table(&rates))?;
            }
        }
        out.flush()?;
        if args.once {
            return Ok(());
        }
    }
}

/// The line above the table.
fn head(rates: &Rates) -> String {
    format!(
        "weir {}, up {}, workers {}, CPU {:.1} % of a core, ports {}\n",
        rates.version,
        uptime(rates.uptime_s),
        rates.workers,
        rates.workers_cpu_percent,
        rates.ports.len()
    )
}

/// All columns.
fn table(rates: &Rates) -> Table {
    let headers = Column::ALL.map(|column| match column {
        Column::Name => "<NAME",
        Column::State => "<STATE",
        Column::Reason => "<DROP REASON",
        Column::Why => "<HELD BECAUSE",
        other => other.header(),
    });
    let mut table = Table::new(&headers);
    for port in &rates.ports {
        table.row(Column::ALL.iter().map(|column| column.cell(port)).collect());
    }
    table
}
