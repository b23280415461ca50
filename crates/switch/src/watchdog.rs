//! The watchdog: a thread that finds threads which make no progress while they have work.
//!
//! Each thread reports its activity by its beats ([`weir_engine::beat`]). A thread that reports the same for too
//! long, and does not sleep, is stalled: the log and `weir stats` name it, its activity and its state in the kernel.
//! The service manager gets a sign of life while any worker moves packets, and restarts weir when none does
//! (`WatchdogSec=` of systemd).
//!
//! | file | content |
//! |---|---|
//! | `judge.rs` | the decision about which threads are stalled, and a thread's state in the kernel |
//! | `service.rs` | messages to the service manager |

use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_engine::{beat, clock, panicked};
use weir_limits::{STANDS_STILL_NS, WATCHDOG_LOOK_NS};

use judge::{Judge, Verdict};

mod judge;
mod service;

pub(crate) use judge::Still;
pub use service::Service;

/// The stalled threads, as of the last look.
static STILL: Mutex<Vec<Still>> = Mutex::new(Vec::new());

/// The stalled threads, as of the last look.
pub(crate) fn still() -> Vec<Still> {
    STILL.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The watchdog's thread. Dropping the value ends it.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread. It tells `service` that weir is alive as often as the service manager requires, and calls
    /// `also` at each look.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(service: Service, mut also: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let look = Duration::from_nanos(WATCHDOG_LOOK_NS);
        // With three messages in each period, two can be late or lost.
        let every = service.wants_news_every().map_or(look, |most| look.min(most / 3));
        let run = move || {
            let mut judge = Judge::new(every, Duration::from_nanos(STANDS_STILL_NS));
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                let verdict = judge.look(clock::now_ns(), &beat::seen());
                let ended = panicked().values().any(|thread| thread.ended);
                if verdict.packets_move && !ended {
                    service.is_alive();
                }
                report(verdict);
                also();
            }
        };
        let thread = std::thread::Builder::new().name("weir-watchdog".into()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.take();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn report(verdict: Verdict) {
    let Verdict { mut still, went_on, .. } = verdict;
    let mut known = STILL.lock().unwrap_or_else(PoisonError::into_inner);
    for thread in &mut still {
        let before = known.iter().find(|it| it.id == thread.id);
        thread.kernel = match before {
            Some(before) => before.kernel.clone(),
            None => judge::says(thread.id),
        };
        if before.is_none() {
            tracing::error!(
                thread = thread.name,
                seconds = thread.ns / 1_000_000_000,
                does = thread.place.as_str(),
                port = thread.port.map(|port| port.to_string()),
                waits_for = thread.party,
                kernel = thread.kernel,
                "a thread stands still"
            );
        }
    }
    for name in went_on {
        tracing::warn!(thread = name, "a thread that stood still goes on");
    }
    *known = still;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_engine::beat::{self, Place, Role, Said, Seen};
    use weir_fabric::PortId;

    use super::judge::{Judge, says};

    const EVERY_NS: u64 = 1_000_000_000;

    fn judge() -> Judge {
        Judge::new(Duration::from_nanos(EVERY_NS), Duration::from_secs(5))
    }

    fn thread(id: u32, turn: u32, place: Place) -> Seen {
        let said = Said::new(turn, place, PortId::new(3));
        Seen { name: format!("weir-worker-{id}"), id, role: Role::Worker, said, party: None }
    }

    #[test]
    fn who_says_the_same_for_too_long_stands_still_and_who_sleeps_does_not() {
        let mut judge = judge();
        for second in 0..5 {
            let seen = [thread(1, 7, Place::Serves), thread(2, 9, Place::Asleep)];
            let verdict = judge.look(second * EVERY_NS, &seen);
            assert!(verdict.still.is_empty() && verdict.packets_move, "{second} s: {verdict:?}");
        }
        let seen = [thread(1, 7, Place::Serves), thread(2, 9, Place::Asleep)];
        let verdict = judge.look(5 * EVERY_NS, &seen);
        assert!(verdict.packets_move, "the other worker serves");
        let [still] = verdict.still.as_slice() else { panic!("{verdict:?}") };
        assert_eq!((still.name.as_str(), still.place), ("weir-worker-1", Place::Serves));
        assert_eq!((still.port, still.ns), (PortId::new(3), 5 * EVERY_NS));

        // One turn is enough to end the stall, and the end is reported.
        let verdict = judge.look(6 * EVERY_NS, &[thread(1, 8, Place::Serves)]);
        assert_eq!(verdict.went_on, ["weir-worker-1"]);
        assert!(verdict.packets_move && verdict.still.is_empty());
    }

    #[test]
    fn who_has_a_turn_at_each_look_beats_however_long_it_works() {
        let mut judge = judge();
        for second in 0..60 {
            let seen = [thread(1, second as u32, Place::Serves)];
            assert!(judge.look(second * EVERY_NS, &seen).packets_move);
        }
    }

    #[test]
    fn a_service_is_alive_until_all_its_workers_stand_still_whoever_else_does() {
        let mut judge = judge();
        let party = Some("the agent of web0".to_owned());
        let manager = |role| Seen { role, party: party.clone(), ..thread(3, 1, Place::Awake) };
        for second in 0..30 {
            let turn = if second < 20 { second as u32 } else { 20 };
            let seen = [
                thread(1, 7, Place::Serves),
                thread(2, turn, Place::Serves),
                manager(Role::Shared),
            ];
            let verdict = judge.look(second * EVERY_NS, &seen);
            assert_eq!(verdict.packets_move, second < 25, "{second} s");
            let named = verdict.still.iter().find(|still| still.id == 3);
            assert_eq!(named.map(|still| &still.party), (second >= 5).then_some(&party));
        }
    }

    #[test]
    fn who_keeps_only_its_own_client_waiting_is_named_and_not_vital() {
        let mut judge = judge();
        let seen = [Seen { role: Role::Own, ..thread(1, 7, Place::Awake) }];
        for second in 0..20 {
            let verdict = judge.look(second * EVERY_NS, &seen);
            assert!(verdict.packets_move);
            assert_eq!(verdict.still.len(), usize::from(second >= 5));
        }
    }

    #[test]
    fn a_process_that_was_stopped_as_a_whole_does_not_blame_its_threads() {
        let mut judge = judge();
        let seen = [thread(1, 7, Place::Serves)];
        judge.look(0, &seen);
        // The process was stopped, as by SIGSTOP or with its virtual machine: for an hour no thread had a turn.
        let verdict = judge.look(3_600 * EVERY_NS, &seen);
        assert!(verdict.packets_move && verdict.still.is_empty());
        // A thread that stays stalled is found.
        let mut now_ns = 3_600 * EVERY_NS;
        for _ in 0..3 {
            now_ns += EVERY_NS;
            judge.look(now_ns, &seen);
        }
        assert!(!judge.look(now_ns + EVERY_NS, &seen).packets_move);
    }

    #[test]
    fn who_has_ended_is_forgotten() {
        let mut judge = judge();
        for second in 0..6 {
            judge.look(second * EVERY_NS, &[thread(1, 7, Place::Serves)]);
        }
        let verdict = judge.look(6 * EVERY_NS, &[]);
        assert!(verdict.packets_move && verdict.still.is_empty());
        // Another thread with the same number starts from zero.
        assert!(judge.look(7 * EVERY_NS, &[thread(1, 7, Place::Serves)]).packets_move);
    }

    /// A real thread that waits for an event that never comes, without reporting that it sleeps.
    #[test]
    fn a_thread_that_stands_still_is_found_by_its_beats_and_the_kernel_says_where() {
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let stuck = std::thread::spawn(move || {
            beat::watch_this_thread("stands-still", Role::Worker);
            beat::awake();
            let _ = gone.recv();
        });
        weir_testing::eventually("it is watched", || {
            let found = beat::seen().into_iter().find(|it| it.name == "stands-still")?;
            says(found.id).contains("state S").then_some(())
        });
        let seen = || -> Vec<_> {
            beat::seen().into_iter().filter(|it| it.name == "stands-still").collect()
        };
        let mut judge = judge();
        let verdicts: Vec<_> =
            (0..7).map(|second| judge.look(second * EVERY_NS, &seen()).packets_move).collect();
        assert_eq!(verdicts, [true, true, true, true, true, false, false]);
        drop(go);
        stuck.join().unwrap();
        assert!(judge.look(7 * EVERY_NS, &seen()).packets_move);
    }
}
