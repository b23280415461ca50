//! Calls: the eventfd by which weir interrupts a guest.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// A checked eventfd to write to.
#[derive(Debug)]
pub(crate) struct Notifier(OwnedFd);

impl Notifier {
    /// Accepts eventfds only: a write to a full pipe or to a socket could block a worker, or do
    /// something else entirely. Non-blocking, since a front end could fill the counter first.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        check_eventfd(&fd)?;
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// Interrupts the guest.
    #[inline]
    pub(crate) fn notify(&self) {
        // EAGAIN: the counter is full, so that the guest's side is signalled already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Refuses what is not an eventfd.
pub(crate) fn check_eventfd(fd: &OwnedFd) -> io::Result<()> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    if info.contains("eventfd-count:") {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not an eventfd"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn only_an_eventfd_is_accepted() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(Notifier::new(writer).is_err());
        assert!(Notifier::new(reader).is_err());
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        assert!(Notifier::new(null.into()).is_err());
        assert!(Notifier::new(eventfd(0, EventfdFlags::empty()).unwrap()).is_ok());
    }

    #[test]
    fn a_full_counter_does_not_block() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        Notifier::new(fd.try_clone().unwrap()).unwrap().notify();
        let mut count = [0; 8];
        rustix::io::read(&fd, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), u64::MAX - 1);
    }
}
