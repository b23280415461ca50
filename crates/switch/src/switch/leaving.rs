//! A switch that stops so that another weir goes on with its guests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_config::UplinkKind;
use weir_engine::beat;
use weir_limits::LEAVES_WITHIN_NS;

use super::Switch;
use crate::control::{Refusal, Response};
use crate::upgrade::{Next, Starter, Which};

/// By what a switch is upgraded.
pub(super) struct Upgrades {
    starter: Starter,
    /// Called with the number of the process that goes on, when that serves.
    then: Box<dyn Fn(u32) + Send + Sync>,
}

/// Why the old weir goes on.
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
    /// From here on it can be upgraded. `then` is called when another process serves, with its number: this one is to
    /// end then, without dropping the switch.
    pub fn upgrades_by(&self, starter: Starter, then: impl Fn(u32) + Send + Sync + 'static) {
        let _ = self.upgrades.set(Upgrades { starter, then: Box::new(then) });
    }

    /// Whether a keeper has what was set, so that the next weir does as well.
    pub fn is_kept(&self) -> bool {
        self.keeper.is_there()
    }

    /// Stops as if this process was killed, at a moment when no packet is under way: every session is between two
    /// requests, every worker between two bursts. Guests, front ends and TAPs stay as they are, with the keeper. The
    /// process has to end then without dropping this: its end is not for them.
    ///
    /// `false` if there is no keeper; then nothing has changed.
    pub fn leave(&self) -> bool {
        if !self.keeper.is_there() {
            return false;
        }
        *self.left.lock().unwrap_or_else(|e| e.into_inner()) = true;
        // Nobody keeps them: their guests are told in order.
        drop(self.xen.lock().unwrap_or_else(|e| e.into_inner()).take());
        // Their threads write into rings that are another weir's from here on.
        self.end_mirrors();
        self.loops.end();
        let busy = self.sessions.leave();
        if busy > 0 {
            tracing::warn!(busy, "sessions are left in the middle of a request");
        }
        self.engine.halt();
        self.note();
        self.keeper.leave();
        true
    }

    /// Whether it can leave in time: a thread that stands still would not end, and its guests would have neither weir.
    ///
    /// # Errors
    /// Who keeps it, and what to do.
    pub fn may_leave(&self) -> Result<(), String> {
        if !self.keeper.is_there() {
            return Ok(());
        }
        beat::all_go_on_within(Duration::from_nanos(LEAVES_WITHIN_NS)).map_err(|still| {
            format!("{still}, and does not go on: ask again when it does; `weir stats` names it")
        })
    }

    /// [Leaves](Self::leave), and stays in memory: its end would be that of its guests' connections. Without a keeper it
    /// ends.
    pub fn leave_for_good(self: Arc<Self>) {
        if self.leave() {
            std::mem::forget(self);
        }
    }

    /// The refusal of changes by one that has [left](Self::leave).
    pub(super) fn has_left(&self) -> Option<Response> {
        let left = *self.left.lock().unwrap_or_else(|e| e.into_inner());
        left.then(|| Response::error("another weir takes this one's place: ask again"))
    }

    /// Has the program that lies there now take this one's place.
    pub(super) fn upgrade(&self) -> Response {
        let _changing = self.changing.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(refusal) = self.has_left() {
            return refusal;
        }
        // It waits for a process of the administrator's.
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
        let goes_on = |(message, help): (String, Option<String>)| {
            let how_it_ended = upgrades.starter.kill();
            let message = format!(
                "the new weir does not come up: {message} ({how_it_ended}); this one goes on"
            );
            Failed { message, help }
        };
        let next = upgrades.starter.start_weir(Which::New);
        let next = next.map_err(|message| goes_on((message, None)))?;
        next.await_prepared().map_err(goes_on)?;
        let begun = Instant::now();
        if !self.leave() {
            return Err(goes_on(("the keeper has just ended".into(), None)));
        }
        if let Err((why, _)) = next.take_over() {
            return Err(self.go_back(upgrades, &why));
        }
        (upgrades.then)(next.process);
        Ok((next.process, begun.elapsed()))
    }

    /// What would be lost, or is there only once.
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
        let mut others = ports.uplinks.iter().filter(|it| it.config.kind == UplinkKind::AfXdp);
        match others.next() {
            Some(uplink) => Err(Failed::new(
                format!("the AF_XDP sockets of uplink {} cannot be taken over", uplink.config.name),
                restart,
            )),
            None => Ok(()),
        }
    }

    /// The new weir has failed when it may have touched rings already: a second process of the program that runs here
    /// goes on from what is kept.
    fn go_back(&self, upgrades: &Upgrades, why: &str) -> Failed {
        let how_it_ended = upgrades.starter.kill();
        tracing::error!(why, how_it_ended, "the new weir has failed: this program goes on");
        let take_over = |next: &Next| next.await_prepared().and_then(|()| next.take_over());
        let old = upgrades.starter.start_weir(Which::Old).map_err(|message| (message, None));
        let old = old.and_then(|old| take_over(&old).map(|()| old.process));
        match old {
            Ok(process) => {
                (upgrades.then)(process);
                Failed {
                    message: format!(
                        "the new weir has failed while it took over: {why} ({how_it_ended}); the old program goes on \
                         as process {process}"
                    ),
                    help: None,
                }
            }
            Err((error, _)) => {
                // The keeper has it all: whoever starts weir again goes on.
                tracing::error!(error, "it does not come up either");
                std::process::exit(1);
            }
        }
    }
}
