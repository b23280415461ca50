//! A switch that has no descriptors left. The test is alone in its process, whose limit it changes.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_engine::Engine;
use weir_engine::guest::{CallPolicy, GuestDevice, GuestPort};
use weir_fabric::PortConfig;
use weir_foreign::{Foreign, Party};
use weir_limits::ACCEPT_PAUSE_NS;
use weir_policy::moderation::Kind;
use weir_port_vhost::{Endpoint, Manager, VhostOptions, VhostPort};
use weir_vhost_user::FrontEnd;

const WAIT: Duration = Duration::from_secs(60);

/// `accept` fails as long as the limit lasts, and the front end that waits in the socket's queue keeps it readable.
#[test]
fn a_front_end_that_finds_no_descriptor_left_waits_and_is_served_later() {
    let engine = Engine::start(1).unwrap();
    let manager = Manager::start(Arc::clone(&engine)).unwrap();
    let calls = CallPolicy::within(Kind::Immediate, 250_000);
    let options =
        VhostOptions { name: "test".into(), queue_pairs: 1, calls, device: GuestDevice::default() };
    let (_, port) = engine
        .add_port(PortConfig::vif(), |id, counters| {
            Arc::new(VhostPort::new(id, counters, &options))
        })
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.sock");
    let listener = UnixListener::bind(&path).unwrap();
    manager
        .add(
            Arc::clone(&port),
            Endpoint::Listener(Arc::new(Foreign::new(listener, &Party::new("test")))),
        )
        .unwrap();

    let limit = getrlimit(Resource::Nofile);
    let front = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let none_left = Rlimit { current: Some(front.as_raw_fd() as u64 + 1), ..limit };
    // The free descriptors below the limit are taken.
    let mut taken = Vec::new();
    setrlimit(Resource::Nofile, none_left).unwrap();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let start = Instant::now();
    // Connecting takes no descriptor; accepting takes one.
    connect(&front, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let unsaid = || port.info().log_lines_unsaid;
    // A message is only left out after the same one was logged, so `accept` has failed often by then.
    while unsaid() == 0 {
        assert!(start.elapsed() < WAIT, "weir never looked, or said each failure");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(1));
    let unsaid = unsaid();
    let looks = start.elapsed().as_nanos() as u64 / ACCEPT_PAUSE_NS + 2;
    assert!(unsaid <= looks, "{unsaid} lines in {looks} looks");
    drop(taken);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut front = FrontEnd::new(UnixStream::from(front));
    front.set_timeout(WAIT);
    front.get_features().unwrap();
}
