//! Tests of the codec over real socket pairs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::{Connection, FrontEnd, Header, Incoming, MemoryRegion, RequestCode};

mod bad_messages;
mod connection;
mod round_trip;
mod vhost_crate;

/// Longer than anything here takes; a longer wait is a failure.
const PATIENCE: Duration = Duration::from_secs(10);

fn pair() -> (FrontEnd, Connection) {
    let (front, back) = UnixStream::pair().unwrap();
    (FrontEnd::new(front), Connection::new(back))
}

/// The back end's next request, waiting for it.
fn next(back: &mut Connection) -> Incoming {
    loop {
        if let Some(incoming) = back.receive().unwrap() {
            return incoming;
        }
        assert!(ready(back.as_fd(), PollFlags::IN), "no request came");
    }
}

fn ready(fd: BorrowedFd<'_>, events: PollFlags) -> bool {
    let patience = Timespec::try_from(PATIENCE).unwrap();
    poll(&mut [PollFd::new(&fd, events)], Some(&patience)).unwrap() > 0
}

/// Runs `ask` while the back end answers one request.
fn ask<R: Send>(
    ask: impl FnOnce(&mut FrontEnd) -> R + Send,
    answer: impl FnOnce(&mut Connection, Incoming),
) -> R {
    let (mut front, mut back) = pair();
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || ask(&mut front));
        let request = next(&mut back);
        answer(&mut back, request);
        asking.join().unwrap()
    })
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

fn events(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| event()).collect()
}

fn borrow(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// A file that can be distinguished from others, which eventfds can't.
fn memory() -> OwnedFd {
    memfd_create("weir-test", MemfdFlags::CLOEXEC).unwrap()
}

fn same_file(a: impl AsFd, b: impl AsFd) -> bool {
    fstat(a).unwrap().st_ino == fstat(b).unwrap().st_ino
}

/// Tells whether the other end was closed everywhere.
struct Canary(OwnedFd);

impl Canary {
    fn new() -> (Self, OwnedFd) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        (Self(reader), writer)
    }

    fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).unwrap();
        polled[0].revents().contains(PollFlags::HUP)
    }
}

fn region(n: u64) -> MemoryRegion {
    MemoryRegion {
        guest_address: 0x1_0000_0000 * n,
        size: 0x20_0000 + n,
        user_address: 0x7f00_0000_0000 + n,
        mmap_offset: 0x1000 * n,
    }
}

/// A request's bytes, with `flags` besides the version.
fn message(request: impl Into<RequestCode>, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = Header::new(request, flags, body.len()).unwrap();
    [&header.encode(), body].concat()
}
