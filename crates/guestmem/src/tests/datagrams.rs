//! Datagrams over loopback.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixDatagram;

use weir_limits::DATAGRAMS_MAX;

use super::*;

fn pair() -> (UdpSocket, UdpSocket) {
    let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (from, to) = (socket(), socket());
    from.set_nonblocking(true).unwrap();
    (from, to)
}

fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 70_000];
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let len = socket.recv(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

fn filled(bytes: &[u8]) -> HostBuffer {
    let buffer = HostBuffer::new(bytes.len());
    buffer.slice(0, bytes.len()).unwrap().write(bytes);
    buffer
}

#[test]
fn datagrams_are_gathered_and_keep_their_bounds_with_gso_and_without() {
    let (from, to) = pair();
    let address = [PeerAddress::new(to.local_addr().unwrap())];
    let payload = filled(&[7; 500]);
    for gso in [false, true] {
        let mut outbox = Outbox::default();
        let mut batch = outbox.batch();
        assert!(batch.is_empty());
        for (number, len) in [(1, 500), (2, 500), (3, 20), (4, 500)] {
            let body =
                [payload.slice(0, len / 2).unwrap(), payload.slice(0, len - len / 2).unwrap()];
            assert!(batch.push(&[&[number], b"head"], body.into_iter(), &address, 0, gso));
        }
        let sent = batch.send(from.as_fd(), |which, error| panic!("{which:?} lost: {error}"));
        assert_eq!(sent, Sent::default());
        assert!(batch.is_empty());
        for (number, len) in [(1, 500), (2, 500), (3, 20), (4, 500)] {
            let expected = [&[number], &b"head"[..], &[7; 500][..len]].concat();
            assert_eq!(received(&to), expected, "gso {gso}");
        }
    }
}

#[test]
fn one_datagram_goes_to_each_of_several() {
    let (from, to) = pair();
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addresses = [&to, &other].map(|it| PeerAddress::new(it.local_addr().unwrap()));
    let mut outbox = Outbox::default();
    let mut batch = outbox.batch();
    assert!(batch.push(&[b"for all"], std::iter::empty(), &addresses, 0, true));
    assert!(batch.push(&[b"for one"], std::iter::empty(), &addresses[1..], 0, true));
    batch.send(from.as_fd(), |which, error| panic!("{which:?} lost: {error}"));
    assert_eq!(received(&to), b"for all");
    assert_eq!((received(&other), received(&other)), (b"for all".into(), b"for one".into()));
}

#[test]
fn what_the_kernel_refuses_is_said_and_the_rest_goes() {
    let (from, to) = pair();
    let here = [PeerAddress::new(to.local_addr().unwrap())];
    // A datagram has at most 65,507 bytes.
    let long = HostBuffer::new(70_000);
    let body = long.slice(0, 70_000);
    let mut outbox = Outbox::default();
    let mut batch = outbox.batch();
    assert!(batch.push(&[b"a"], std::iter::empty(), &here, 0, true));
    assert!(batch.push(&[b"b"], body.into_iter(), &here, 0, true));
    assert!(batch.push(&[b"c"], std::iter::empty(), &here, 0, true));
    let mut lost = Vec::new();
    batch.send(from.as_fd(), |which, error| lost.push((which, error.raw_os_error())));
    assert_eq!(lost, [(1..2, Some(libc::EMSGSIZE))]);
    assert_eq!((received(&to), received(&to)), (b"a".into(), b"c".into()));
}

#[test]
fn a_file_gets_them_one_by_one_and_says_which_it_does_not_take() {
    let (from, to) = UnixDatagram::pair().unwrap();
    let body = filled(&[7; 1 << 20]);
    let mut outbox = Outbox::default();
    let mut batch = outbox.batch();
    for body in [body.slice(0, 3), body.slice(0, 1 << 20), body.slice(4, 1)] {
        assert!(batch.push(&[b"a", b"b"], body.into_iter(), &[PeerAddress::NONE], 0, false));
    }
    let mut lost = Vec::new();
    batch.write(from.as_fd(), |which, error| lost.push((which, error.raw_os_error())));
    assert!(batch.is_empty());
    assert_eq!(lost, [(1..2, Some(libc::EMSGSIZE))]);
    let target = HostBuffer::new(16);
    let into = target.slice(0, 16).unwrap();
    assert_eq!(read(to.as_fd(), &into).unwrap(), 5);
    assert_eq!(into.read_array(), Some(*b"ab\x07\x07\x07"));
    assert_eq!(read(to.as_fd(), &into).unwrap(), 3);
}

#[test]
fn a_full_file_is_not_asked_again_for_the_rest_of_a_batch() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let body = filled(&[7; 4090]);
    let mut outbox = Outbox::default();
    let mut batch = outbox.batch();
    for body in [body.slice(0, 3), body.slice(0, 4090), body.slice(4, 1)] {
        assert!(batch.push(&[b"ab"], body.into_iter(), &[PeerAddress::NONE], 0, false));
    }
    let mut lost = Vec::new();
    batch.write(writer.as_fd(), |which, error| lost.push((which, error.kind())));
    assert_eq!(lost, [(1..3, std::io::ErrorKind::WouldBlock)]);
    let target = HostBuffer::new(16);
    assert_eq!(read(reader.as_fd(), &target.slice(0, 16).unwrap()).unwrap(), 5);
}

#[test]
fn a_batch_has_a_bound_and_takes_more_when_it_was_sent() {
    let (from, to) = pair();
    let here = [PeerAddress::new(to.local_addr().unwrap())];
    let mut outbox = Outbox::default();
    let mut batch = outbox.batch();
    let push = |batch: &mut Batch<'_, '_>| batch.push(&[b"x"], std::iter::empty(), &here, 0, false);
    let pushed = (0..2 * DATAGRAMS_MAX).take_while(|_| push(&mut batch)).count();
    assert_eq!(pushed, DATAGRAMS_MAX);
    batch.send(from.as_fd(), |_, _| {});
    assert!(push(&mut batch));
}

#[test]
fn messages_are_received_with_their_senders_and_where_they_are_cut() {
    let (from, to) = pair();
    to.set_nonblocking(true).unwrap();
    let gro: libc::c_int = 1;
    rustix_gro(&to, gro);
    let here = [PeerAddress::new(to.local_addr().unwrap())];
    let mut outbox = Outbox::default();
    let mut batch = outbox.batch();
    for part in [&b"aaaa"[..], b"bbbb", b"c"] {
        assert!(batch.push(&[part], std::iter::empty(), &here, 0, true));
    }
    batch.send(from.as_fd(), |which, error| panic!("{which:?} lost: {error}"));
    let buffers = [HostBuffer::new(64), HostBuffer::new(64)];
    let slices = [0, 1].map(|index: usize| buffers[index].slice(0, 64).unwrap());
    let mut arrivals = Vec::new();
    let mut receive = || receive_datagrams(to.as_fd(), slices.iter().copied(), &mut arrivals);
    while receive().is_err() {}
    let from = Some(IpAddr::from(Ipv4Addr::LOCALHOST));
    assert_eq!(arrivals, [Arrival { len: 9, from, segment_len: 4, class: 0, truncated: false }]);
    let mut bytes = [0; 9];
    slices[0].read(&mut bytes);
    assert_eq!(&bytes, b"aaaabbbbc");
    let none = receive_datagrams(to.as_fd(), slices.iter().copied(), &mut arrivals).unwrap_err();
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
    assert!(arrivals.is_empty());
}

fn rustix_gro(socket: &UdpSocket, on: libc::c_int) {
    use std::os::fd::AsRawFd as _;
    const UDP_GRO: libc::c_int = 104;
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: `len` bytes at `on` are readable during the call.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, UDP_GRO, (&raw const on).cast(), len)
    };
    assert_eq!(set, 0);
}
