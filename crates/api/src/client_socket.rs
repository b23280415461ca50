//! A client's socket. The thread that reads it closes none of its descriptors.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use weir_foreign::{Foreign, Party, receive};

/// The connection of a client on this machine. When it is dropped, its party's closer closes it.
pub(crate) struct ClientSocket {
    /// `Some` until this is dropped.
    stream: Option<UnixStream>,
    party: Party,
}

impl ClientSocket {
    pub(crate) fn new(stream: UnixStream, party: Party) -> Self {
        Self { stream: Some(stream), party }
    }

    fn stream(self: Pin<&mut Self>) -> io::Result<(&mut UnixStream, &Party)> {
        let this = self.get_mut();
        let stream = this.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Ok((stream, &this.party))
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        // A stream that cannot be taken off the reactor is closed with it.
        if let Some(Ok(stream)) = self.stream.take().map(UnixStream::into_std) {
            drop(Foreign::new(stream, &self.party));
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (stream, party) = self.stream()?;
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let free = room.initialize_unfilled();
            match stream.try_io(Interest::READABLE, || receive(&*stream, free, party)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|len| room.advance(len))),
            }
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream()?.0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()?.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()?.0).poll_shutdown(cx)
    }
}
