//! `weir top`: traffic, hold times and drops, with reasons.
//!
//! | file | content |
//! |---|---|
//! | `rates.rs` | the rates between two looks at the switch |
//! | `columns.rs` | the columns of the list, and its order |
//! | `state.rs` | the state of the screen, and the effect of keys |
//! | `screen.rs` | the drawing |
//! | `details.rs` | one port, in lines |
//! | `asker.rs` | the thread that asks weir, so that keys work even if weir does not answer |
//! | `plain.rs` | tables and JSON, without a terminal |

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGINT, SIGTERM};
use weir_config::Defaults;

use crate::args::TopArgs;
use crate::commands::CommandError;

mod asker;
mod columns;
mod details;
mod plain;
mod rates;
mod screen;
mod state;
#[cfg(test)]
mod tests;

pub use columns::Column;

use asker::{Asker, look};
use state::{Next, State};

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
        return plain::run(args, defaults, out);
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

/// The terminal, on its alternate screen and in raw mode until this is dropped.
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
