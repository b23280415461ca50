//! Signals end weir in time, whatever its threads wait for.
//!
//! The thread `weir-signals` waits for signals and for nothing else. It passes each to the main
//! thread, which ends weir in order. If that takes too long, `weir-signals` ends weir itself: it
//! restores weir's changes to this machine, logs the threads that delayed the end, and exits. It
//! writes no log before that: a program that does not read the log would keep it waiting.

use std::io;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;
use weir_config::SocketPath;
use weir_engine::beat::{self, Place, Seen};
use weir_limits::{END_IN_ORDER_NS, END_UNDOES_NS};
use weir_switch::Hands;
use weir_switch::compiler::Ending;

/// The time limit of an orderly end.
const IN_ORDER: Duration = Duration::from_nanos(END_IN_ORDER_NS);
/// Exit code of a weir that could not end in order.
const EXIT_CUT_SHORT: i32 = 6;

/// The request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGHUP: a reload of the configuration.
    Reload,
    /// SIGUSR2: an end that leaves everything to the next weir.
    Leave,
    /// SIGINT, SIGTERM: an end.
    End,
}

/// The state of a weir that must be undone at its end.
#[derive(Debug)]
pub(crate) struct Left {
    /// The process that restores weir's changes.
    pub(crate) hands: Hands,
    /// The control socket. Changes are recorded beside it.
    pub(crate) control: Option<SocketPath>,
    /// The compiler of filter expressions.
    pub(crate) compiler: Option<Ending>,
}

/// The requests of signals, as the main thread receives them.
#[derive(Debug)]
pub(crate) struct Asks(Receiver<(i32, Asked)>);

impl Asks {
    /// Starts the thread. From here on, weir ends within two seconds of a signal for its end.
    pub(crate) fn start(mut signals: Signals, left: Left) -> io::Result<Self> {
        let (ask, asked) = mpsc::channel();
        let wait = move || {
            for signal in signals.forever() {
                let asked = match signal {
                    SIGHUP => Asked::Reload,
                    SIGUSR2 => Asked::Leave,
                    _ => Asked::End,
                };
                // If the main thread has ended, it receives nothing.
                let _ = ask.send((signal, asked));
                if asked == Asked::End {
                    weir_switch::leave_to_exit();
                    if let Some(compiler) = &left.compiler {
                        compiler.begin();
                    }
                    thread::sleep(IN_ORDER);
                    cut_short(move || left.hands.let_go(left.control.as_ref()))
                }
            }
        };
        thread::Builder::new().name("weir-signals".into()).spawn(wait)?;
        Ok(Self(asked))
    }

    /// The next request; `None` after the signals were closed: another process has replaced this one, or the only
    /// front end has disconnected.
    pub(crate) fn next(&self) -> Option<Asked> {
        let (signal, asked) = self.0.recv().ok()?;
        let what = match asked {
            Asked::Reload => "a reload",
            Asked::Leave => "an upgrade",
            Asked::End => "the end",
        };
        tracing::info!(signal, "a signal asks for {what}");
        Some(asked)
    }
}

/// Ends a weir that leaves everything to the next one, if it does not end by itself in time. Nothing is undone,
/// because the keeper holds the state.
pub(crate) fn leaves_in_time() -> io::Result<()> {
    let end = || {
        thread::sleep(IN_ORDER);
        cut_short(|| ());
    };
    thread::Builder::new().name("weir-leaves".into()).spawn(end).map(drop)
}

/// Ends this process, whatever its threads wait for.
fn cut_short(undo: impl FnOnce() + Send + 'static) -> ! {
    let (done, undone) = mpsc::channel::<()>();
    // Writing the log can block, and a network card may not answer.
    let undo = move || {
        undo();
        tracing::error!(
            still_at = whom_it_waits_for(&beat::seen()),
            "ended out of order: what weir has changed on this machine is restored, guests are cut off"
        );
        drop(done);
    };
    if thread::Builder::new().name("weir-undoes".into()).spawn(undo).is_ok() {
        let _ = undone.recv_timeout(Duration::from_nanos(END_UNDOES_NS));
    }
    exit(EXIT_CUT_SHORT)
}

/// The threads that do not sleep, with their activity and the party for which they work.
fn whom_it_waits_for(seen: &[Seen]) -> String {
    let busy = seen.iter().filter(|thread| thread.said.place() != Place::Asleep);
    let said: Vec<_> = busy.map(ToString::to_string).collect();
    if said.is_empty() { "no thread that is watched".into() } else { said.join("; ") }
}
