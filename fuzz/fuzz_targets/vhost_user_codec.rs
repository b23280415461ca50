//! Bytes and descriptors of a hostile front end, in pieces, into the back end's connection.
//!
//! The input is a sequence of pieces: one byte for the length, one for the number of descriptors, and the bytes. The
//! connection must not panic, and must close every descriptor that it receives.
#![cfg_attr(fuzzing, no_main)]

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use weir_vhost_user::{Connection, FrontEnd};

/// The kernel's limit per `sendmsg` is higher (`SCM_MAX_FD` is 253). Fewer are faster to make.
const FDS_PER_PIECE_MAX: usize = 16;

weir_fuzz::target!(|input: &[u8]| {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let (front, back) = UnixStream::pair().expect("a socket pair");
    let (mut front, mut back) = (FrontEnd::new(front), Connection::new(back));

    let mut rest = input;
    'session: while let [len, fds, tail @ ..] = rest {
        let (piece, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        let fds = vec![writer.as_fd(); usize::from(*fds) % (FDS_PER_PIECE_MAX + 1)];
        front.raw_send(piece, &fds).expect("the back end reads along");
        loop {
            match back.receive() {
                Ok(Some(message)) => drop(message),
                Ok(None) => break,
                Err(_) => break 'session,
            }
        }
    }

    drop((front, back, writer));
    let mut polled = [PollFd::new(&reader, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).expect("poll");
    let closed = polled.iter().all(|fd| fd.revents().contains(PollFlags::HUP));
    assert!(closed, "a descriptor of the front end is still open");
});
