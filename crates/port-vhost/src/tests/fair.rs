//! One front end cannot harm the others.

use std::io::Write;
use std::os::unix::net::UnixListener;
use weir_engine::guest::GuestPort;

use weir_foreign::{Foreign, Party};
use weir_limits::{LOG_LINES_MAX, SESSIONS_AT_ONCE_MAX};
use weir_testing::slow::{lingering, send_with};
use weir_vhost_user::Request;

use super::*;

fn listening(switch: &Switch, dir: &std::path::Path) -> (Arc<VhostPort>, std::path::PathBuf) {
    let (port, _) = switch.port();
    switch.manager.remove(port.id()).unwrap();
    let path = dir.join(format!("{}.sock", port.id()));
    let listener = UnixListener::bind(&path).unwrap();
    switch
        .manager
        .add(
            Arc::clone(&port),
            Endpoint::Listener(Arc::new(Foreign::new(listener, &Party::new("test")))),
        )
        .unwrap();
    (port, path)
}

/// `SET_OWNER`, in bytes of our own.
fn set_owner() -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[0] = 3;
    bytes[4] = 1;
    bytes
}

#[test]
fn a_front_end_that_never_pauses_keeps_no_other_one_waiting_and_is_throttled() {
    let switch = Switch::new();
    let (loud, mut stream) = switch.port();
    let flood = set_owner().repeat(1000);
    let flooding = std::thread::spawn(move || while stream.write_all(&flood).is_ok() {});
    eventually("the flood is throttled", || loud.info().throttled > 0);
    for _ in 0..20 {
        let (port, stream) = switch.port();
        let mut front = FrontEnd::new(stream);
        front.set_timeout(PATIENCE);
        assert_eq!(front.get_features().unwrap(), OFFERED);
        switch.manager.remove(port.id()).unwrap();
    }
    switch.manager.remove(loud.id()).unwrap();
    flooding.join().unwrap();
}

#[test]
fn a_front_end_that_sends_half_a_message_keeps_no_other_one_waiting() {
    let switch = Switch::new();
    let (half, mut stream) = switch.port();
    stream.write_all(&set_owner()[..7]).unwrap();
    let _guest = switch.guest(1, modern());
    switch.manager.remove(half.id()).unwrap();
}

/// A descriptor in flight to weir holds open the connection by which it travels.
#[test]
fn a_connection_that_is_sent_over_itself_ends_with_its_front_end() {
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::new();
    let (port, path) = listening(&switch, dir.path());
    let own_end = UnixStream::connect(&path).unwrap();
    let mut front = FrontEnd::new(own_end.try_clone().unwrap());
    front.raw_send(&set_owner()[..7], &[own_end.as_fd()]).unwrap();
    drop((front, own_end));
    eventually("its session ends", || port.info().failed == 1);
    let reason = port.info().stop_reason.unwrap();
    assert!(reason.contains("left a message unfinished"), "{reason}");
    let own_end = UnixStream::connect(&path).unwrap();
    let mut front = FrontEnd::new(own_end.try_clone().unwrap());
    let _ = front.set_vring_call(0, Some(own_end.as_fd()));
    drop((front, own_end));
    eventually("its session ends", || port.info().failed == 2);
    let reason = port.info().stop_reason.unwrap();
    assert!(reason.contains("a socket with an address cannot be called"), "{reason}");
}

#[test]
fn a_descriptor_that_takes_for_ever_to_close_is_its_front_ends_loss() {
    let switch = Switch::new();
    let (port, stream) = switch.port();
    // A socket whose close waits for a reader that does not read.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut refused = 0;
    while refused < 5 {
        refused = if socket.write(&[0; 65536]).is_ok() { 0 } else { refused + 1 };
        std::thread::sleep(Duration::from_millis(if refused > 0 { 20 } else { 0 }));
    }
    socket.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(PATIENCE)).unwrap();
    let mut front = FrontEnd::new(stream);
    front.set_timeout(PATIENCE);
    // The descriptor comes with the first half of the message. When the second half comes, nobody else has it.
    let mut message = [0; 20];
    (message[0], message[4], message[8]) = (Request::SetVringCall as u8, 1, 8);
    front.raw_send(&message[..12], &[socket.as_fd()]).unwrap();
    drop(socket);
    front.raw_send(&message[12..], &[]).unwrap();
    // Others come, go, and are served meanwhile.
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    drop((a, b));
    drop(reader);
    drop(front);
    eventually("its session ends", || port.info().failed + port.info().closed == 1);
}

#[test]
fn a_second_front_end_is_turned_away_after_a_while_and_a_successor_is_not() {
    let switch = Switch::new();
    let dir = tempfile::tempdir().unwrap();
    let (port, path) = listening(&switch, dir.path());
    let mut first = FrontEnd::new(UnixStream::connect(&path).unwrap());
    first.set_timeout(PATIENCE);
    first.get_features().unwrap();
    let mut second = FrontEnd::new(UnixStream::connect(&path).unwrap());
    second.set_timeout(PATIENCE);
    assert!(second.get_features().is_err(), "there is one already");
    assert_eq!(port.info().turned_away, 1);
    // A program that tests whether somebody serves the socket wants no session.
    drop(UnixStream::connect(&path).unwrap());
    let mut after = FrontEnd::new(UnixStream::connect(&path).unwrap());
    after.set_timeout(PATIENCE);
    assert!(after.get_features().is_err(), "both were accepted");
    assert_eq!(port.info().turned_away, 2);
    first.get_features().unwrap();
    let mut third = FrontEnd::new(UnixStream::connect(&path).unwrap());
    drop(first);
    third.set_timeout(PATIENCE);
    assert_eq!(third.get_features().unwrap(), OFFERED, "whose predecessor ends in time");
}

#[test]
fn who_reconnects_without_end_has_pauses_and_few_lines_in_the_log() {
    let switch = Switch::new();
    let dir = tempfile::tempdir().unwrap();
    let (port, path) = listening(&switch, dir.path());
    for _ in 0..SESSIONS_AT_ONCE_MAX + 5 {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(&[0xff; 12]).unwrap();
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut rest);
    }
    eventually("its sessions are over", || port.info().failed >= u64::from(SESSIONS_AT_ONCE_MAX));
    let info = port.info();
    assert!(info.throttled > 0);
    assert!(info.log_lines_unsaid >= u64::from(SESSIONS_AT_ONCE_MAX - LOG_LINES_MAX), "{info:?}");
    let _guest = switch.guest(1, modern());
}

#[test]
fn the_ends_of_sessions_are_at_their_interfaces_expense() {
    const LEN: u64 = 1 << 40;
    let switch = Switch::new();
    let dir = tempfile::tempdir().unwrap();
    let (port, path) = listening(&switch, dir.path());
    port.memory().set_max_bytes(LEN);
    // Its messages cost little, and a terabyte that nobody has touched is unmapped in 16,384 pieces.
    let memory = memfd_create("weir-large", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, LEN).unwrap();
    let region = MemoryRegion { size: LEN, ..Guest::region() };
    let sessions = u64::from(SESSIONS_AT_ONCE_MAX) - 1;
    let held_back = (1..=sessions).find(|turn| {
        let mut front = FrontEnd::new(UnixStream::connect(&path).unwrap());
        front.set_timeout(PATIENCE);
        front.set_mem_table(&[(region, memory.as_fd())]).unwrap();
        front.get_features().unwrap();
        drop(front);
        eventually("its session ends", || port.info().closed == *turn);
        port.info().throttled > 0
    });
    // The first one's successor does not wait for what is left.
    assert!(held_back.is_some_and(|turn| turn > 2), "{held_back:?} {:?}", port.info());
}

#[test]
fn a_panic_of_the_thread_that_accepts_ends_no_session_and_others_come() {
    let switch = Switch::new();
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    switch.manager.panic();
    let mut c = switch.guest(3, modern());
    introduce(&mut a, &mut b);
    while c.received().is_some() {}
    let hello = frame(&a, Some(&c), 60, 7);
    a.send(&hello);
    eventually("it has it", || c.received().is_some_and(|(_, frame)| frame[14] == 7));
    assert_eq!(a.port.info().failed, 0);
    let panics = weir_engine::panicked()["weir-sessions"];
    assert!(panics.panics > 0 && !panics.ended);
}

#[test]
fn connections_with_slow_descriptors_that_are_turned_away_or_left_in_a_queue_keep_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::new();
    let (port, path) = listening(&switch, dir.path());
    let mut first = FrontEnd::new(UnixStream::connect(&path).unwrap());
    first.set_timeout(PATIENCE);
    assert_eq!(first.get_features().unwrap(), OFFERED);
    let (slow, reader) = lingering();
    let second = UnixStream::connect(&path).unwrap();
    send_with(&second, b"x", slow).unwrap();
    drop(second);
    eventually("it is turned away", || port.info().turned_away == 1);
    // Others come, go, and are served meanwhile.
    let (mut a, mut b) = (switch.guest(1, modern()), switch.guest(2, modern()));
    introduce(&mut a, &mut b);
    let (slow, other_reader) = lingering();
    let third = UnixStream::connect(&path).unwrap();
    send_with(&third, b"x", slow).unwrap();
    drop(third);
    let began = Instant::now();
    switch.manager.remove(port.id()).unwrap();
    drop(switch);
    assert!(began.elapsed() < PATIENCE, "a close takes ten minutes");
    drop((a, b, reader, other_reader));
}
