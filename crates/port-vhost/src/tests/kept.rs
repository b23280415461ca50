//! Sessions that are resumed from a state that another weir has left with the keeper: `docs/design/restarts.md#0033`.
//! The tests that really kill weir are in `cli/tests/kept/main.rs`.

use std::io::{ErrorKind, Read, Write};
use weir_engine::guest::GuestPort;

use weir_keeper::{Keeper, Taken};
use weir_limits::KEPT_TRIES_MAX;
use weir_vhost_user::{
    DirtyLog, HEADER_LEN, Header, NEED_REPLY_FLAG, Payload, Request, VringState, reply_bytes,
};

use super::*;
use crate::keep::{Blob, RegionState, State, UnderWay, VringState as KeptVring};
use crate::{Keep, Records};
use weir_foreign::{Foreign, Party};
use weir_testing::slow::{lingering, send_with};

/// A missing keeper: the test itself holds everything that is kept.
fn no_keeper() -> Arc<Keeper> {
    let (keeper, _) = Keeper::take(Box::new(|| Err(ErrorKind::NotFound.into()))).unwrap();
    Arc::new(keeper)
}

/// The state that an earlier weir has left, and the front end's side of its connection.
struct Left {
    blob: Blob,
    taken: Taken,
    front: UnixStream,
}

fn idle() -> State {
    State {
        connection: 1,
        queue_pairs: 2,
        vrings: vec![KeptVring::default(); 4],
        ..State::default()
    }
}

/// A descriptor of the interface `test`, as a keeper gives it.
fn kept(name: &str, descriptor: impl Into<OwnedFd>) -> (String, Foreign<OwnedFd>) {
    (format!("test/{name}"), Foreign::new(descriptor.into(), &Party::new("test")))
}

impl Left {
    fn new(state: &State, under_way: Option<&UnderWay>) -> Self {
        let blob = Blob::make().unwrap();
        assert!(blob.store(Some(state), under_way));
        let (ours, front) = UnixStream::pair().unwrap();
        front.set_read_timeout(Some(PATIENCE)).unwrap();
        let taken = Taken::from([kept("1", ours), kept("state", blob.file())]);
        Self { blob, taken, front }
    }

    fn with(mut self, number: u32, descriptor: OwnedFd) -> Self {
        self.taken.extend([kept(&number.to_string(), descriptor)]);
        self
    }

    /// Starts the next weir, which takes the session up.
    fn take_up(mut self, switch: &Switch) -> (Arc<VhostPort>, UnixStream) {
        let keep = Keep::new(no_keeper(), "test", &mut self.taken).unwrap();
        assert!(self.taken.is_empty());
        let (port, _unused) = switch.port_with(|port| port.with_keep(keep));
        (port, self.front)
    }
}

fn request(request: Request, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = Header::new(request, flags, body.len()).unwrap();
    [&header.encode(), body].concat()
}

/// The request that the next reply answers.
fn replied(front: &mut UnixStream) -> Request {
    let mut head = [0; HEADER_LEN];
    front.read_exact(&mut head).unwrap();
    let header = Header::decode(&head).unwrap();
    assert!(header.is_reply());
    front.read_exact(&mut vec![0; header.body_len()]).unwrap();
    header.request().known().unwrap()
}

fn get_features() -> UnderWay {
    UnderWay {
        message: request(Request::GetFeatures, 0, &[]),
        reply: reply_bytes(Request::GetFeatures, &7u64.encode()).unwrap(),
        with_inflight: false,
    }
}

#[test]
fn a_reply_that_a_weir_owed_is_sent_once_and_one_that_it_sent_is_not() {
    let switch = Switch::new();
    let owed = get_features();
    let next = request(Request::GetProtocolFeatures, 0, &[]);
    // The request is still in the socket, and its front end waits.
    let mut left = Left::new(&idle(), Some(&owed));
    left.front.write_all(&owed.message).unwrap();
    let (_port, mut front) = left.take_up(&switch);
    assert_eq!(replied(&mut front), Request::GetFeatures);
    front.write_all(&next).unwrap();
    assert_eq!(replied(&mut front), Request::GetProtocolFeatures);
    // The request is still in the socket, and its front end continues.
    let mut left = Left::new(&idle(), Some(&owed));
    left.front.write_all(&[&owed.message[..], &next].concat()).unwrap();
    let (_port, mut front) = left.take_up(&switch);
    assert_eq!(replied(&mut front), Request::GetProtocolFeatures);
    // The request was taken from the socket: then it was answered.
    let mut left = Left::new(&idle(), Some(&owed));
    left.front.write_all(&next).unwrap();
    let (_port, mut front) = left.take_up(&switch);
    assert_eq!(replied(&mut front), Request::GetProtocolFeatures);
    // The request was not stored as handled, so it is new.
    let mut left = Left::new(&idle(), None);
    left.front.write_all(&owed.message).unwrap();
    let (_port, mut front) = left.take_up(&switch);
    assert_eq!(replied(&mut front), Request::GetFeatures);
}

#[test]
fn what_is_not_whole_is_not_taken_up() {
    let region = RegionState {
        guest_address: 0,
        size: 4096,
        user_address: 0,
        mmap_offset: 0,
        again: 0,
        file: 9,
    };
    let served = KeptVring {
        size: Some(16),
        addresses: Some([0, 4096, 8192]),
        kick: Some(5),
        ..KeptVring::default()
    };
    let rings = |first: KeptVring| [vec![first], vec![KeptVring::default(); 3]].concat();
    let states = [
        (State { queue_pairs: 3, ..idle() }, "its queue pairs"),
        (
            State { queue_pairs: 200, vrings: vec![KeptVring::default(); 400], ..idle() },
            "its queue pairs",
        ),
        (State { features: u64::MAX, ..idle() }, "were not offered"),
        (State { protocol_features: 1 << 40, ..idle() }, "were not offered"),
        (State { regions: vec![region], ..idle() }, "its memory"),
        (State { vrings: rings(KeptVring { size: Some(0), ..served.clone() }), ..idle() }, "size"),
        (
            State { vrings: rings(KeptVring { kick: Some(8), ..served.clone() }), ..idle() },
            "a kick",
        ),
        (
            State { vrings: rings(KeptVring { call: Some(8), ..served.clone() }), ..idle() },
            "a call",
        ),
        (
            State { vrings: rings(KeptVring { addresses: None, ..served.clone() }), ..idle() },
            "addresses",
        ),
        (State { vrings: rings(served.clone()), ..idle() }, "is not in shared memory"),
        (
            State { features: modern() | RING_PACKED, vrings: rings(served), ..idle() },
            "a packed ring's record",
        ),
    ];
    for (state, reason) in states {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let left = Left::new(&state, None).with(5, event);
        let file = left.blob.file();
        let switch = Switch::new();
        let (port, mut front) = left.take_up(&switch);
        assert_eq!(front.read(&mut [0]).unwrap(), 0, "{reason}");
        eventually("it is said why", || port.info().failed == 1);
        let said = port.info().stop_reason.unwrap();
        assert!(said.contains(reason), "{said}: {reason}");
        // The next weir does not resume the session either.
        let mut taken = Taken::from([kept("state", file)]);
        assert!(Keep::new(no_keeper(), "test", &mut taken).unwrap().take_left().is_none());
    }
}

#[test]
fn a_session_whose_request_ends_weir_again_and_again_is_not_taken_up() {
    let left = Left::new(&idle(), None);
    left.blob.set_tries(KEPT_TRIES_MAX);
    let (slow, _reader) = lingering();
    send_with(&left.front, b"x", slow).unwrap();
    // The sender's copy is closed by now.
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    let mut taken = left.taken;
    let keep = Keep::new(no_keeper(), "test", &mut taken).unwrap();
    assert!(keep.connection().is_none() && keep.take_left().is_none());
    assert!(began.elapsed() < PATIENCE, "its connection would close in ten minutes");
    drop(keep);
    let mut front = left.front;
    let ended = front.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(ended, Err(ErrorKind::ConnectionReset), "it may connect again");
}

/// The kept state of a session, as the next weir would find it.
fn found(file: &OwnedFd) -> Option<State> {
    let blob = Blob::over(file.try_clone().unwrap()).unwrap();
    blob.read().map(|(state, _)| state)
}

/// A guest whose rings run, and the file with the kept state of its session.
fn kept_guest(switch: &Switch) -> (OwnedFd, Guest, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep::new(no_keeper(), "test", &mut Taken::new()).unwrap();
    let file = keep.blob().file();
    let records = Records::open(&dir.path().join("a.rings")).unwrap();
    let (port, stream) = switch.port_with(|port| port.with_records(records).with_keep(keep));
    let mut guest = Guest::new(port, stream, 1, modern());
    guest.set_up().unwrap();
    guest.start();
    (file, guest, dir)
}

#[test]
fn a_session_is_kept_as_far_as_it_has_come_and_no_longer_than_it_lasts() {
    let switch = Switch::new();
    let (file, mut guest, _dir) = kept_guest(&switch);
    let state = found(&file).unwrap();
    assert_eq!(state.features, modern());
    assert_eq!((state.regions.len(), state.queue_pairs), (1, 2));
    let served: Vec<_> =
        state.vrings.iter().map(|ring| (ring.kick.is_some(), ring.enabled)).collect();
    assert_eq!(served, [(true, true), (true, true), (false, false), (false, false)]);
    guest.front.get_vring_base(1).unwrap();
    let stopped = &found(&file).unwrap().vrings[1];
    assert!(stopped.kick.is_none() && stopped.base.is_some());
    // A call descriptor that is no eventfd could be slow to close.
    let (pipe, _other) = UnixStream::pair().unwrap();
    guest.front.set_vring_call(0, Some(pipe.as_fd())).unwrap();
    eventually("nothing is kept", || found(&file).is_none());
    let features = guest.front.get_features().unwrap();
    assert_eq!(features, OFFERED, "but it is served");
}

#[test]
fn a_guest_that_moves_is_kept_with_its_log_and_until_that_is_over() {
    let switch = Switch::new();
    let (file, mut guest, _dir) = kept_guest(&switch);
    let log = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&log, 1 << 20).unwrap();
    guest.front.set_log_base(DirtyLog { size: 1 << 20, offset: 0 }, log.as_fd()).unwrap();
    guest.front.set_features(modern() | LOG_ALL).unwrap();
    let call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    guest.front.set_log_fd(call.as_fd()).unwrap();
    guest.front.get_features().unwrap();
    let state = found(&file).unwrap();
    assert!(state.log_call.is_some());
    assert!(state.log.is_some_and(|log| log.size == 1 << 20) && state.features & LOG_ALL != 0);
    guest.front.set_features(modern()).unwrap();
    guest.front.get_features().unwrap();
    let state = found(&file).unwrap();
    assert_eq!((state.log, state.log_call), (None, None), "the move is over");
}

#[test]
fn a_request_in_pieces_is_served_and_the_session_kept_when_it_is_whole() {
    let switch = Switch::new();
    let keep = Keep::new(no_keeper(), "test", &mut Taken::new()).unwrap();
    let file = keep.blob().file();
    let (_port, mut front) = switch.port_with(|port| port.with_keep(keep));
    eventually("it is kept", || found(&file).is_some());
    let state = VringState { index: 0, num: 16 };
    let message = request(Request::SetVringNum, NEED_REPLY_FLAG, &state.encode());
    front.write_all(&message[..15]).unwrap();
    eventually("half a request is not kept", || found(&file).is_none());
    front.write_all(&message[15..]).unwrap();
    eventually("it is kept again", || {
        found(&file).is_some_and(|state| state.vrings[0].size == Some(16))
    });
}
