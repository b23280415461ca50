//! The process's descriptors that guests may have. The last ones are in reserve: an administrator
//! needs them for repairs. Of the others, an interface may have only those that leave every other
//! interface its share.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};
use weir_limits::{
    DESCRIPTORS_BEFORE_GUEST, DESCRIPTORS_OF_GUEST, DESCRIPTORS_OF_MESSAGE, DESCRIPTORS_OF_RING,
    DESCRIPTORS_RESERVED, KEPT_OF_SESSION,
};

/// Guests may have descriptors below this number. The kernel gives the lowest free one, so a number from here on shows
/// that all lower ones are taken.
static GUESTS_BELOW: AtomicU64 = AtomicU64::new(u64::MAX);

/// Guests have used up their descriptors: those of the reserve, and of other interfaces' shares, are not for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "guests have used up their {0} descriptors; the rest is for other interfaces and the control socket: raise \
     LimitNOFILE= in weir's unit, or `ulimit -n`"
)]
pub struct NoRoom(pub u64);

impl From<NoRoom> for io::Error {
    fn from(error: NoRoom) -> Self {
        Self::other(error)
    }
}

/// The number of descriptors that guests may have out of `limit`: at most a quarter is in reserve.
#[must_use]
pub const fn for_guests_of(limit: u64) -> u64 {
    let quarter = limit / 4;
    limit - if quarter < DESCRIPTORS_RESERVED { quarter } else { DESCRIPTORS_RESERVED }
}

/// The most descriptors that a front end makes weir hold at a time, even for a moment: those of its
/// rings, of its session, of a message, and those that are not closed yet. If the session is
/// `kept`, there are copies of them, of the guest's memory, and of a message that replaces some.
#[must_use]
pub const fn of_guest(queue_pairs: usize, kept: bool) -> u64 {
    let rings = 2 * DESCRIPTORS_OF_RING * queue_pairs as u64;
    let own = rings + DESCRIPTORS_OF_GUEST + DESCRIPTORS_OF_MESSAGE;
    let copies = rings + KEPT_OF_SESSION + DESCRIPTORS_OF_MESSAGE;
    own + if kept { copies } else { 0 }
}

/// From now on the last descriptors below the process's limit are in reserve, and interfaces share all others but
/// `of_switch`.
pub fn reserve(of_switch: u64) {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let for_guests = for_guests_of(limit);
    GUESTS_BELOW.store(for_guests, Ordering::Relaxed);
    lock(&SHARES).most = for_guests.saturating_sub(of_switch);
}

/// The shares of this process's interfaces.
static SHARES: Mutex<Held> = Mutex::new(Held { most: u64::MAX, all: 0 });

/// The descriptors that interfaces share.
#[derive(Debug)]
struct Held {
    most: u64,
    /// The sum of what each interface holds, or of its share if that is more.
    all: u64,
}

/// The descriptors of one interface. Before code accepts a descriptor of the front end, it states
/// the number that the interface then holds.
#[derive(Debug)]
pub struct Share {
    part: Mutex<Part>,
    among: &'static Mutex<Held>,
}

/// The number of descriptors that an interface has, and the number that it may always have.
#[derive(Clone, Copy, Debug)]
struct Part {
    has: u64,
    least: u64,
}

impl Part {
    fn counts(self) -> u64 {
        self.has.max(self.least)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each number is changed in one step, so a poisoned lock does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Share {
    /// A share of `least` descriptors, which no other interface gets.
    #[must_use]
    pub fn new(least: u64) -> Self {
        Self::among(&SHARES, least)
    }

    /// A share that takes from `most` descriptors of its own, for tests.
    #[must_use]
    pub fn alone(most: u64) -> Self {
        Self::among(Box::leak(Box::new(Mutex::new(Held { most, all: 0 }))), 0)
    }

    fn among(among: &'static Mutex<Held>, least: u64) -> Self {
        lock(among).all += least;
        Self { part: Mutex::new(Part { has: 0, least }), among }
    }

    fn put(&self, checks: bool, change: impl FnOnce(&mut Part)) -> Result<(), NoRoom> {
        let (mut part, mut held) = (lock(&self.part), lock(self.among));
        let mut new = *part;
        change(&mut new);
        let all = held.all - part.counts() + new.counts();
        if checks && new.has > new.least.max(part.has) && all > held.most {
            return Err(NoRoom(new.least));
        }
        (*part, held.all) = (new, all);
        Ok(())
    }

    /// Changes the share.
    pub fn set_least(&self, least: u64) {
        let _ = self.put(false, |part| part.least = least);
    }

    /// The interface is about to hold this many descriptors.
    ///
    /// # Errors
    /// [`NoRoom`]: these are more than its share, and those that others may still claim would not
    /// be left. The earlier number stays in force.
    pub fn claim(&self, count: u64) -> Result<(), NoRoom> {
        self.put(true, |part| part.has = count)
    }

    /// The interface holds this many descriptors, whatever is left.
    pub fn hold(&self, count: u64) {
        let _ = self.put(false, |part| part.has = count);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(self.among).all -= lock(&self.part).counts();
    }
}

fn below(number: i32, room: u64) -> Result<(), NoRoom> {
    let below = GUESTS_BELOW.load(Ordering::Relaxed);
    let number = u64::try_from(number).unwrap_or(u64::MAX);
    if number.saturating_add(room) < below { Ok(()) } else { Err(NoRoom(below)) }
}

/// Returns a descriptor that was just opened for a guest, or came from it, unless it belongs to the
/// reserve, in which case it is closed.
///
/// # Errors
/// [`NoRoom`].
pub fn for_guest<F: AsFd>(fd: F) -> Result<F, NoRoom> {
    below(fd.as_fd().as_raw_fd(), 0).map(|()| fd)
}

/// Checks that there is room for one more guest's descriptors, before it is accepted.
///
/// # Errors
/// [`NoRoom`], or the process has no descriptor left at all.
pub fn room_for_guest() -> io::Result<()> {
    let lowest = eventfd(0, EventfdFlags::CLOEXEC)?;
    Ok(below(lowest.as_raw_fd(), DESCRIPTORS_BEFORE_GUEST)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_a_quarter_of_the_descriptors_is_in_reserve() {
        assert_eq!(for_guests_of(64), 48);
        assert_eq!(for_guests_of(1024), 1024 - DESCRIPTORS_RESERVED);
        assert_eq!(for_guests_of(0), 0);
        assert_eq!(for_guests_of(u64::MAX), u64::MAX - DESCRIPTORS_RESERVED);
    }

    #[test]
    fn an_interface_takes_what_leaves_every_other_one_its_share_and_nothing_more() {
        static TEN: Mutex<Held> = Mutex::new(Held { most: 10, all: 0 });
        let (greedy, late) = (Share::among(&TEN, 3), Share::among(&TEN, 3));
        greedy.claim(7).unwrap();
        assert_eq!(greedy.claim(8), Err(NoRoom(3)));
        late.claim(3).unwrap();
        assert_eq!(late.claim(4), Err(NoRoom(3)));
        greedy.claim(6).unwrap();
        late.claim(4).unwrap();
        // A further interface still gets its share. Interfaces that hold more than their share get no more.
        let third = Share::among(&TEN, 3);
        third.claim(3).unwrap();
        assert_eq!(greedy.claim(7), Err(NoRoom(3)));
        greedy.claim(5).unwrap();
        drop(third);
        greedy.claim(6).unwrap();
        late.hold(9);
        late.set_least(9);
        drop((greedy, late));
        assert_eq!(lock(&TEN).all, 0);
    }

    /// No other test of this crate opens a descriptor for a guest.
    #[test]
    fn what_lies_in_the_reserve_is_not_for_a_guest() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = file.as_raw_fd() as u64;
        GUESTS_BELOW.store(number + 1, Ordering::Relaxed);
        assert!(for_guest(&file).is_ok());
        assert!(room_for_guest().is_err(), "one is there, and not what a guest brings");
        GUESTS_BELOW.store(number, Ordering::Relaxed);
        assert_eq!(for_guest(&file).err(), Some(NoRoom(number)));
        GUESTS_BELOW.store(u64::MAX, Ordering::Relaxed);
        room_for_guest().unwrap();
    }
}
