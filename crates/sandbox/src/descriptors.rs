//! The process's descriptors that guests may have: not the last ones, which an administrator needs for repairs.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};
use weir_limits::{DESCRIPTORS_BEFORE_GUEST, DESCRIPTORS_RESERVED};

/// Guests may have descriptors below this number. The kernel gives the lowest free one, so a number from here on shows
/// that all lower ones are taken.
static GUESTS_BELOW: AtomicU64 = AtomicU64::new(u64::MAX);

/// Guests have used up their descriptors. Those of the reserve are not for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "guests have used up their {0} descriptors; the rest is for the control socket: raise LimitNOFILE= in weir's unit, \
     or `ulimit -n`"
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

/// From now on the last descriptors below the process's limit are in reserve.
pub fn reserve() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    GUESTS_BELOW.store(for_guests_of(limit), Ordering::Relaxed);
}

fn below(number: i32, room: u64) -> Result<(), NoRoom> {
    let below = GUESTS_BELOW.load(Ordering::Relaxed);
    let number = u64::try_from(number).unwrap_or(u64::MAX);
    if number.saturating_add(room) < below { Ok(()) } else { Err(NoRoom(below)) }
}

/// Returns a descriptor that was just opened for a guest, or came from it, unless it is one of the reserve; then it is
/// closed.
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
