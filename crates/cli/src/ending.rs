//! A signal ends weir in time, whatever its threads wait for.
//!
//! The thread `weir-signals` waits for signals and for nobody else. It hands each to the first thread, which ends weir in
//! order. An end that takes too long it makes short: what weir has changed on this machine is restored, the log says
//! who kept it, and the process is over.

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

/// How long an orderly end may take.
const IN_ORDER: Duration = Duration::from_nanos(END_IN_ORDER_NS);
/// Exit code of a weir that could not end in order.
const EXIT_CUT_SHORT: i32 = 6;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGHUP: another configuration.
    Reload,
    /// SIGUSR2: an end that leaves all to the next weir.
    Leave,
    /// SIGINT, SIGTERM: an end.
    End,
}

/// What a weir has that is to end.
#[derive(Debug)]
pub(crate) struct Left {
    /// Who restores what was changed.
    pub(crate) hands: Hands,
    /// Its control socket, beside which is noted what was changed.
    pub(crate) control: Option<SocketPath>,
    /// What compiles its expressions.
    pub(crate) compiler: Option<Ending>,
}

/// What signals ask for, as the first thread hears it.
#[derive(Debug)]
pub(crate) struct Asks(Receiver<Asked>);

impl Asks {
    /// Starts the thread. From here on a signal that asks for an end has it within two seconds.
    pub(crate) fn start(mut signals: Signals, left: Left) -> io::Result<Self> {
        let (ask, asked) = mpsc::channel();
        let wait = move || {
            for signal in signals.forever() {
                let asked = match signal {
                    SIGHUP => Asked::Reload,
                    SIGUSR2 => Asked::Leave,
                    _ => Asked::End,
                };
                tracing::info!(signal, ?asked, "a signal");
                // The first thread has gone where nobody hears it.
                let _ = ask.send(asked);
                if asked == Asked::End {
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

    /// The next one; `None` when another process has what this one had, or who asked for this one is gone.
    pub(crate) fn next(&self) -> Option<Asked> {
        self.0.recv().ok()
    }
}

/// Ends a weir that leaves all to the next one, unless it does so itself in time. Nothing is undone: the keeper has it.
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
    // The log may be full, and a network card may not answer.
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

/// The threads that do not sleep, with what they do and for whom.
fn whom_it_waits_for(seen: &[Seen]) -> String {
    let busy = seen.iter().filter(|thread| thread.said.place() != Place::Asleep);
    let said: Vec<_> = busy.map(ToString::to_string).collect();
    if said.is_empty() { "no thread that is watched".into() } else { said.join("; ") }
}
