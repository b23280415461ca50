//! Beats, signs of life of each thread, by which a watchdog finds a thread that is stuck; and the handling of panics in
//! threads beside the workers, which are bugs in weir.
//!
//! A thread has one word in memory, which it writes in each turn: the number of its turns, what it does, and for which
//! port. It also writes the word before it sleeps, since a sleeping thread is not stuck. Only the watchdog reads the
//! words, so a beat costs one store.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_fabric::PortId;
use weir_limits::{THREAD_PANICS_MAX, THREAD_PAUSE_NS};

use crate::threads::lock::lock;

/// Interval at which a thread is checked while another thread waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The thread waits for something to do.
    Asleep,
    /// The thread has woken up, or does something that has no variant of its own.
    Awake,
    /// A worker looks for work.
    Looks,
    /// A worker serves a queue of a port.
    Serves,
}

impl Place {
    const ALL: [Self; 4] = [Self::Asleep, Self::Awake, Self::Looks, Self::Serves];

    /// The activity in words, for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asleep => "sleeps",
            Self::Awake => "works",
            Self::Looks => "looks for work",
            Self::Serves => "serves a queue",
        }
    }
}

/// The activity has the low 16 bits, a port's number plus one the next 16, and the turn the rest.
const PORT_SHIFT: u32 = 16;
const TURN: u64 = 1 << 32;

/// A thread's last beat. Two equal values are from the same turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said(u64);

impl Said {
    /// The value for a turn.
    pub fn new(turn: u32, place: Place, port: Option<PortId>) -> Self {
        let port = port.map_or(0, |port| u64::from(port.get()) + 1);
        Self((u64::from(turn) * TURN) | (port << PORT_SHIFT) | place as u64)
    }

    /// The activity.
    pub fn place(self) -> Place {
        let index = usize::from(self.0 as u16);
        Place::ALL.get(index).copied().unwrap_or(Place::Awake)
    }

    /// The port that the thread serves.
    pub fn port(self) -> Option<PortId> {
        // The field holds the port's number plus one.
        let number = (self.0 >> PORT_SHIFT) & 0xffff;
        number.checked_sub(1).and_then(|number| PortId::new(number as u16))
    }
}

/// The party that waits when a thread is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Guests wait: the thread moves packets.
    Worker,
    /// Clients that request a change wait; packets still flow.
    Shared,
    /// Only the client that the thread serves waits.
    Own,
}

/// A thread that beats.
#[derive(Debug)]
struct Thread {
    name: String,
    id: u32,
    role: Role,
    said: AtomicU64,
    /// The party that the thread serves, if that is not a port.
    party: Mutex<Option<String>>,
}

/// A thread as a watchdog sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The thread's name.
    pub name: String,
    /// The kernel's id of the thread.
    pub id: u32,
    /// The party that waits when the thread is stuck.
    pub role: Role,
    /// The thread's last beat.
    pub said: Said,
    /// The party that the thread serves or waits for.
    pub party: Option<String>,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, said, party, .. } = self;
        write!(f, "{name} {}", said.place().as_str())?;
        match (party, said.port()) {
            (Some(party), _) => write!(f, " for {party}"),
            (None, Some(port)) => write!(f, " for port {port}"),
            (None, None) => Ok(()),
        }
    }
}

static THREADS: Mutex<Vec<Arc<Thread>>> = Mutex::new(Vec::new());

/// All threads that beat now.
pub fn seen() -> Vec<Seen> {
    let see = |thread: &Arc<Thread>| Seen {
        name: thread.name.clone(),
        id: thread.id,
        role: thread.role,
        said: Said(thread.said.load(Ordering::Relaxed)),
        party: lock(&thread.party).clone(),
    };
    lock(&THREADS).iter().map(see).collect()
}

/// The beats of this thread. The watch ends when this value is dropped.
#[derive(Debug)]
pub struct Beats {
    thread: Arc<Thread>,
    turn: u32,
}

impl Beats {
    /// Begins to watch this thread.
    pub fn begin(name: impl Into<String>, role: Role) -> Self {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let said = AtomicU64::new(Said::new(0, Place::Awake, None).0);
        let party = Mutex::default();
        let thread = Arc::new(Thread { name: name.into(), id, role, said, party });
        lock(&THREADS).push(Arc::clone(&thread));
        Self { thread, turn: 0 }
    }

    /// Begins a turn.
    #[inline]
    pub fn beat(&mut self, place: Place, port: Option<PortId>) {
        self.turn = self.turn.wrapping_add(1);
        self.thread.said.store(Said::new(self.turn, place, port).0, Ordering::Relaxed);
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        lock(&THREADS).retain(|thread| !Arc::ptr_eq(thread, &self.thread));
    }
}

thread_local! {
    static THIS: RefCell<Option<Beats>> = const { RefCell::new(None) };
}

/// Watches this thread for as long as it runs; [`asleep`] and [`awake`] are its beats.
pub fn watch_this_thread(name: &str, role: Role) {
    THIS.with_borrow_mut(|this| *this = Some(Beats::begin(name, role)));
}

/// Marks this thread as waiting for something to do.
pub fn asleep() {
    beat(Place::Asleep);
}

/// Marks this thread as working.
pub fn awake() {
    beat(Place::Awake);
}

/// Runs `wait`, in which this thread waits for something to do.
pub fn wait<T>(wait: impl FnOnce() -> T) -> T {
    asleep();
    let got = wait();
    awake();
    got
}

/// Does `work` for an outside party, and names the party while it can keep this thread waiting.
pub fn serving<T>(party: impl FnOnce() -> String, work: impl FnOnce() -> T) -> T {
    let name = |party: Option<String>| {
        THIS.with_borrow(|this| {
            let thread = this.as_ref().map(|beats| Arc::clone(&beats.thread));
            thread.and_then(|thread| std::mem::replace(&mut *lock(&thread.party), party))
        })
    };
    /// Restores the party even if `work` panics.
    struct Back<F: FnMut(Option<String>) -> Option<String>>(F, Option<String>);
    impl<F: FnMut(Option<String>) -> Option<String>> Drop for Back<F> {
        fn drop(&mut self) {
            let before = self.1.take();
            let _ = (self.0)(before);
        }
    }
    let before = name(Some(party()));
    let _back = Back(name, before);
    awake();
    work()
}

/// Waits, but no longer than `patience`, until each thread on which others depend sleeps or has
/// begun a new turn. A thread may only claim to sleep: the threads in `woken`, given by the
/// kernel's ids, get a new turn by `wake`.
///
/// # Errors
/// A thread that had no new turn in this time.
pub fn all_go_on_within(
    patience: Duration,
    woken: &[u32],
    wake: impl FnOnce(),
) -> Result<(), Seen> {
    let end = Instant::now() + patience;
    let mut left = seen();
    wake();
    loop {
        let now = seen();
        left.retain(|before| {
            let is_same = |thread: &&Seen| thread.id == before.id && thread.said == before.said;
            before.role != Role::Own
                && (before.said.place() != Place::Asleep || woken.contains(&before.id))
                && now.iter().any(|thread| is_same(&thread))
        });
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(left.remove(0));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn beat(place: Place) {
    THIS.with_borrow_mut(|this| {
        if let Some(beats) = this {
            beats.beat(place, None);
        }
    });
}

/// The panics of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Panics {
    /// The number of the thread's panics.
    pub panics: u32,
    /// There were too many: the thread has ended, and its work is no longer done.
    pub ended: bool,
}

static PANICKED: Mutex<BTreeMap<&'static str, Panics>> = Mutex::new(BTreeMap::new());

/// The threads of this process that have panicked, by name.
pub fn panicked() -> BTreeMap<&'static str, Panics> {
    lock(&PANICKED).clone()
}

/// Runs `work` on the thread `name` until it returns. After a panic it runs again, with the same state, after a pause;
/// after too many panics the thread ends. Returns true if `work` has returned.
pub fn supervise(name: &'static str, mut work: impl FnMut()) -> bool {
    watch_this_thread(name, Role::Shared);
    for panics in 1..=THREAD_PANICS_MAX {
        if catch_unwind(AssertUnwindSafe(&mut work)).is_ok() {
            return true;
        }
        let ended = panics == THREAD_PANICS_MAX;
        lock(&PANICKED).insert(name, Panics { panics, ended });
        if ended {
            tracing::error!(name, "a thread panicked too often and is not started again");
        } else {
            tracing::error!(
                name,
                panics,
                "a thread panicked and is started again (please report it)"
            );
            std::thread::sleep(Duration::from_nanos(THREAD_PAUSE_NS));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Option<Seen> {
        seen().into_iter().find(|thread| thread.name == name)
    }

    #[test]
    fn a_word_says_place_and_port_and_is_another_one_each_turn() {
        let ports = [0, 1, 65_534].map(PortId::new).into_iter().flatten();
        for port in std::iter::once(None).chain(ports.map(Some)) {
            for place in Place::ALL {
                let said = Said::new(7, place, port);
                assert_eq!((said.place(), said.port()), (place, port));
                assert_ne!(said, Said::new(8, place, port));
            }
        }
    }

    #[test]
    fn a_thread_is_watched_from_its_beginning_to_its_end() {
        let (told, wait_for) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            watch_this_thread("beats-here", Role::Worker);
            wait(|| {
                told.send(()).unwrap();
                let _ = gone.recv();
            });
        });
        wait_for.recv().unwrap();
        let seen = of("beats-here").unwrap();
        assert_eq!((seen.said.place(), seen.role), (Place::Asleep, Role::Worker));
        drop(go);
        thread.join().unwrap();
        assert_eq!(of("beats-here"), None);
    }

    #[test]
    fn a_thread_names_the_party_that_it_serves_until_it_has_done_so_or_panicked() {
        std::thread::spawn(|| {
            watch_this_thread("serves-here", Role::Shared);
            let party = || of("serves-here").unwrap().party;
            serving(
                || "user 7".into(),
                || {
                    assert_eq!(party().as_deref(), Some("user 7"));
                    serving(|| "web0".into(), || assert_eq!(party().as_deref(), Some("web0")));
                    assert_eq!(party().as_deref(), Some("user 7"));
                    let said = of("serves-here").unwrap().to_string();
                    assert_eq!(said, "serves-here works for user 7");
                },
            );
            assert_eq!(party(), None);
            let panics = || serving(|| "db0".into(), || panic!("as it may"));
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!(party(), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn whoever_leaves_waits_for_a_thread_that_works_and_not_for_one_that_stands_still() {
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            watch_this_thread("stays-here", Role::Shared);
            serving(
                || "web0".into(),
                || {
                    let _ = gone.recv();
                },
            );
            asleep();
        });
        let found = || of("stays-here").and_then(|it| it.party);
        while found().is_none() {
            std::thread::yield_now();
        }
        // Threads of other tests are also stuck for a moment.
        let still = || all_go_on_within(Duration::from_millis(50), &[], || ());
        while still().map_err(|it| it.to_string()) != Err("stays-here works for web0".into()) {
            std::thread::yield_now();
        }
        drop(go);
        thread.join().unwrap();
        assert_eq!(all_go_on_within(Duration::from_secs(60), &[], || ()), Ok(()));
    }

    #[test]
    fn who_says_that_it_sleeps_is_believed_unless_it_was_woken() {
        let (wake, woken) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            watch_this_thread("sleeps-here", Role::Worker);
            wait(|| {
                let _ = woken.recv();
            });
            asleep();
            // This wake-up never reaches the thread.
            let _ = woken.recv();
        });
        let id = loop {
            match of("sleeps-here") {
                Some(found) if found.said.place() == Place::Asleep => break found.id,
                _ => std::thread::yield_now(),
            }
        };
        let minute = Duration::from_secs(60);
        assert_eq!(all_go_on_within(minute, &[id], || wake.send(()).unwrap()), Ok(()));
        let still = || all_go_on_within(Duration::from_millis(50), &[id], || ());
        while still().map_err(|it| it.to_string()) != Err("sleeps-here sleeps".into()) {
            std::thread::yield_now();
        }
        assert_eq!(all_go_on_within(minute, &[], || ()), Ok(()), "nobody has asked it");
        drop(wake);
        thread.join().unwrap();
    }

    #[test]
    fn a_thread_that_panics_begins_anew_and_ends_when_it_does_so_too_often() {
        let mut left = 3;
        assert!(supervise("mends", || {
            left -= 1;
            assert_eq!(left, 0, "a mistake");
        }));
        assert_eq!(panicked()["mends"], Panics { panics: 2, ended: false });
        assert!(!supervise("never", || panic!("a mistake")));
        assert_eq!(panicked()["never"], Panics { panics: THREAD_PANICS_MAX, ended: true });
        assert!(supervise("always", || ()) && !panicked().contains_key("always"));
    }
}
