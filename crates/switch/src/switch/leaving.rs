//! The stop of a switch whose guests another weir takes over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::beat;
use weir_limits::LEAVES_WITHIN_NS;

use super::Switch;
use crate::control::{Refusal, Response};
use crate::upgrade::{Next, NotUp, Starter, Upgrades, Which};

/// Each thread must show within this time that it makes progress.
const WITHIN: Duration = Duration::from_nanos(LEAVES_WITHIN_NS);
/// The number of a worker's ports that a message names.
const NAMED_MAX: usize = 8;

/// The reason why the old weir continues.
struct Failed {
    message: String,
    help: Option<String>,
}

impl Failed {
    fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: Some(help.into()) }
    }
}

impl Switch {
    /// Allows upgrades from now on. `then` is called with the number of another process when that process serves.
    /// This process must then end without dropping the switch.
    pub fn upgrades_by(&self, starter: Starter, then: impl Fn(u32) + Send + Sync + 'static) {
        let _ = self.upgrades.set(Upgrades { starter, then: Box::new(then) });
    }

    /// True if the keeper is connected, so that the next weir gets the run-time settings.
    pub fn is_kept(&self) -> bool {
        self.keeper.is_there()
    }

    /// Stops as if this process were killed, but at a moment when no packet is in flight: every session is between
    /// two requests, and every worker between two bursts. The keeper holds guests' sessions, front ends' sockets and
    /// TAPs as they are. The process must then end without dropping the switch, because a drop would end them.
    ///
    /// Returns false if there is no keeper. Nothing has changed then.
    pub fn leave(&self) -> bool {
        if !self.keeper.is_there() {
            return false;
        }
        *self.left.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.on_demand.end();
        // No keeper holds Xen guests' vifs, so their guests are disconnected in an orderly way.
        drop(self.xen.lock().unwrap_or_else(|e| e.into_inner()).take());
        // These threads write into rings that now belong to another weir.
        self.mirrors.lock().unwrap_or_else(|e| e.into_inner()).end();
        self.loops.end();
        let busy = self.sessions.leave();
        if busy > 0 {
            tracing::warn!(busy, "sessions are left in the middle of a request");
        }
        if !self.engine.halt_within(WITHIN) {
            // The worker may touch rings later. Without this process the next weir goes on as after a SIGKILL.
            tracing::error!("a worker stands still while weir leaves: its process ends");
            std::process::exit(1);
        }
        self.note();
        self.keeper.leave();
        true
    }

    /// Checks that the switch can leave in time. A stalled thread would not end, and the guests would be served by
    /// neither weir. A thread that sleeps is woken for the check: it may have been stopped in its sleep.
    ///
    /// # Errors
    /// The stalled thread, with advice on how to resolve it.
    pub fn may_leave(&self) -> Result<(), String> {
        if !self.keeper.is_there() {
            return Ok(());
        }
        let workers = self.engine.worker_threads();
        let woken: Vec<_> = workers.iter().copied().flatten().collect();
        let all = beat::all_go_on_within(WITHIN, &woken, || self.engine.wake());
        let still = match all {
            Err(still) => {
                let worker = workers.iter().position(|id| *id == Some(still.id));
                format!(
                    "{still}{}",
                    worker.map(|worker| self.whom_it_serves(worker)).unwrap_or_default()
                )
            }
            Ok(()) if !self.sessions.goes_on_within(WITHIN) => "weir-sessions sleeps".into(),
            Ok(()) => return Ok(()),
        };
        Err(format!("{still}, and does not go on: ask again when it does"))
    }

    /// The ports that a worker serves, for a message.
    fn whom_it_serves(&self, worker: usize) -> String {
        // A thread that changes the ports may wait for this worker.
        let Ok(ports) = self.ports.try_lock() else { return String::new() };
        let served = self.engine.served_by(worker);
        let of_it = ports.named().filter(|(id, _)| served.contains(id));
        let mut names: Vec<_> = of_it.map(|(_, name)| name.to_string()).collect();
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        if more > 0 {
            names.push(format!("{more} more"));
        }
        if names.is_empty() { String::new() } else { format!(", serves {}", names.join(", ")) }
    }

    /// [Leaves](Self::leave) and stays in memory, because dropping the switch would end the guests' connections.
    /// Without a keeper the switch is dropped.
    pub fn leave_for_good(self: Arc<Self>) {
        if self.leave() {
            std::mem::forget(self);
        }
    }

    /// The refusal of changes by a switch that has [left](Self::leave).
    pub(super) fn has_left(&self) -> Option<Response> {
        let left = *self.left.lock().unwrap_or_else(|e| e.into_inner());
        let message = "another weir takes this one's place: ask again".to_owned();
        left.then_some(Response::Error { kind: Refusal::Later, message, help: None })
    }

    /// Replaces this process by the program that is installed now.
    pub(super) fn upgrade(&self) -> Response {
        let _changing = self.changing.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(refusal) = self.has_left() {
            return refusal;
        }
        // The upgrade waits for a process of the administrator's.
        match beat::wait(|| self.try_upgrade()) {
            Ok((process, gap)) => {
                let gap_ms = gap.as_secs_f64() * 1e3;
                tracing::info!(process, gap_ms, "another weir has taken this one's place");
                Response::Noted {
                    note: format!("process {process} serves; packets waited for {gap_ms:.1} ms"),
                }
            }
            Err(Failed { message, help }) => {
                tracing::error!(message, "not upgraded");
                Response::Error { kind: Refusal::Conflict, message, help }
            }
        }
    }

    fn try_upgrade(&self) -> Result<(u32, Duration), Failed> {
        let upgrades = self.upgrades.get().ok_or_else(|| {
            Failed::new("this weir has no keeper", "set `keeper` in [switch], and start weir again")
        })?;
        self.check_upgrade()?;
        let goes_on = |not_up: NotUp| {
            let why = not_up.why(&upgrades.starter.kill());
            let message = format!("the new weir does not come up: {why}; this one goes on");
            Failed { message, help: not_up.help }
        };
        let next = upgrades.starter.start_weir(Which::New).map_err(goes_on)?;
        next.await_prepared().map_err(goes_on)?;
        // The preparation takes seconds, in which a thread may have stopped.
        if let Err(why) = self.may_leave() {
            let _ = upgrades.starter.kill();
            return Err(Failed { message: format!("{why}; this weir goes on"), help: None });
        }
        let begun = Instant::now();
        if !self.leave() {
            return Err(goes_on(NotUp::of("the keeper has just ended".into())));
        }
        if let Err(not_up) = next.take_over() {
            return Err(self.go_back(upgrades, &not_up));
        }
        (upgrades.then)(next.process);
        Ok((next.process, begun.elapsed()))
    }

    /// Refuses an upgrade that would lose state, or that needs a device which only one process can have.
    fn check_upgrade(&self) -> Result<(), Failed> {
        let restart = "guests survive `systemctl restart weir`, or SIGUSR2 and another start";
        if !self.keeper.is_there() {
            let help = "start weir-keeper; weir finds it within five seconds";
            return Err(Failed::new("the keeper is not there", help));
        }
        if self.xen.lock().unwrap_or_else(|e| e.into_inner()).is_some() {
            return Err(Failed::new("guests of Xen cannot be taken over", restart));
        }
        if let Err(why) = self.may_leave() {
            return Err(Failed { message: why, help: Some(restart.into()) });
        }
        let ports = self.ports();
        let mut others = ports.uplinks.iter().filter(|it| it.config.kind.has_cards_queues());
        match others.next() {
            Some(uplink) => Err(Failed::new(
                format!("the AF_XDP sockets of uplink {} cannot be taken over", uplink.config.name),
                restart,
            )),
            None => Ok(()),
        }
    }

    /// Recovers from a new weir that failed after it may have touched rings: a second process of the running program
    /// continues from the state at the keeper.
    fn go_back(&self, upgrades: &Upgrades, not_up: &NotUp) -> Failed {
        let why = not_up.why(&upgrades.starter.kill());
        tracing::error!(why, "the new weir has failed: this program goes on");
        let take_over = |next: &Next| next.await_prepared().and_then(|()| next.take_over());
        let old = upgrades.starter.start_weir(Which::Old);
        let old = old.and_then(|old| take_over(&old).map(|()| old.process));
        match old {
            Ok(process) => {
                (upgrades.then)(process);
                Failed {
                    message: format!(
                        "the new weir has failed while it took over: {why}; the old program goes on \
                         as process {process}"
                    ),
                    help: None,
                }
            }
            Err(NotUp { message: error, .. }) => {
                // The keeper holds all state, so the next start of weir continues.
                tracing::error!(error, "it does not come up either");
                std::process::exit(1);
            }
        }
    }
}
