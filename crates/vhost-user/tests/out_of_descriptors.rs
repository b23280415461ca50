//! A message for whose descriptors this process has no room is not taken for one with fewer. The test is alone in its
//! process, because it limits the process's descriptors.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_vhost_user::{Connection, ConnectionError, FrontEnd, Header, ProtocolError, RequestCode};

#[test]
fn descriptors_the_kernel_could_not_deliver_are_an_error() {
    let (front, back) = UnixStream::pair().unwrap();
    let (mut front, mut back) = (FrontEnd::new(front), Connection::new(back));
    let sent = std::fs::File::open("/dev/null").unwrap();
    // This request takes any number of descriptors.
    let header = Header::new(RequestCode(1000), 0, 0).unwrap();
    front.raw_send(&header.encode(), &[sent.as_fd(); 3]).unwrap();

    let lowest_free = sent.try_clone().unwrap().as_raw_fd();
    let limit = getrlimit(Resource::Nofile);
    let room_for_one = Rlimit { current: Some(lowest_free as u64 + 1), ..limit };
    setrlimit(Resource::Nofile, room_for_one).unwrap();
    let received = back.receive();
    setrlimit(Resource::Nofile, limit).unwrap();

    let lost = ProtocolError::FdsLost { received: 1 };
    assert_eq!(received.expect_err("accepted"), ConnectionError::from(lost));
    let now_free = sent.try_clone().unwrap().as_raw_fd();
    assert_eq!(now_free, lowest_free, "the delivered descriptor is still open");
}
