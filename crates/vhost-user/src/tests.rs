//! Tests of the codec over real socket pairs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

use crate::{Connection, FrontEnd, Header, Incoming, MemoryRegion, RequestCode, *};

mod connection;
mod messages;

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

const FEATURES: u64 = 1 << 32 | 1 << VHOST_USER_F_PROTOCOL_FEATURES;
const PROTOCOL_FEATURES: u64 = 1 << VHOST_USER_PROTOCOL_F_MQ
    | 1 << VHOST_USER_PROTOCOL_F_REPLY_ACK
    | 1 << VHOST_USER_PROTOCOL_F_CONFIG
    | 1 << VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD
    | 1 << VHOST_USER_PROTOCOL_F_RESET_DEVICE
    | 1 << VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;

/// Answers as a back end does until the front end disconnects, and returns the requests.
fn serve(mut back: Connection, inflight_area: OwnedFd) -> Vec<FrontMessage> {
    let mut log = Vec::new();
    loop {
        let incoming = match back.receive() {
            Ok(Some(incoming)) => incoming,
            Ok(None) => {
                assert!(ready(back.as_fd(), PollFlags::IN), "the front end is silent");
                continue;
            }
            Err(ConnectionError::Closed) => return log,
            Err(error) => panic!("{error}"),
        };
        let request = incoming.request;
        match &incoming.message {
            FrontMessage::GetFeatures => back.reply_u64(request, FEATURES),
            FrontMessage::GetProtocolFeatures => back.reply_u64(request, PROTOCOL_FEATURES),
            FrontMessage::GetQueueNum => back.reply_u64(request, 8),
            FrontMessage::GetMaxMemSlots => back.reply_u64(request, 509),
            FrontMessage::GetVringBase { index } => {
                back.reply(request, VringState { index: *index, num: 42 })
            }
            FrontMessage::GetConfig(space) => {
                let bytes = space.bytes.iter().map(|byte| byte + 1).collect();
                let space = ConfigSpace { bytes, ..space.clone() };
                back.send_reply(request, &space.encode(), vec![])
            }
            FrontMessage::GetInflightFd(inflight) => {
                let fds = vec![inflight_area.try_clone().unwrap()];
                back.send_reply(request, &inflight.encode(), fds)
            }
            _ if incoming.need_reply => back.ack(request, true),
            _ => Ok(()),
        }
        .unwrap();
        log.push(incoming.message);
    }
}

fn region_info(n: u64, fd: &OwnedFd) -> VhostUserMemoryRegionInfo {
    let MemoryRegion { guest_address, size, user_address, mmap_offset } = region(n);
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest_address,
        memory_size: size,
        userspace_addr: user_address,
        mmap_offset,
        mmap_handle: fd.as_raw_fd(),
    }
}

#[test]
fn vhost_crate_front_end_completes_its_requests() {
    let (front, back) = UnixStream::pair().unwrap();
    let files: Vec<_> = (0..3).map(|_| memory()).collect();
    let area = files[2].try_clone().unwrap();
    let serving = std::thread::spawn(move || serve(Connection::new(back), area));

    let mut front = Frontend::from_stream(front, 16);
    assert_eq!(front.get_features().unwrap(), FEATURES);
    front.set_features(FEATURES).unwrap();
    let offered = front.get_protocol_features().unwrap();
    assert_eq!(offered.bits(), PROTOCOL_FEATURES);
    front
        .set_protocol_features(VhostUserProtocolFeatures::from_bits_truncate(PROTOCOL_FEATURES))
        .unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front.set_owner().unwrap();
    assert_eq!(front.get_queue_num().unwrap(), 8);
    assert_eq!(front.get_max_mem_slots().unwrap(), 509);
    front.set_mem_table(&[region_info(1, &files[0]), region_info(2, &files[1])]).unwrap();
    front.add_mem_region(&region_info(3, &files[2])).unwrap();
    front.remove_mem_region(&region_info(3, &files[2])).unwrap();
    front.set_vring_num(0, 256).unwrap();
    front.set_vring_base(0, 7).unwrap();
    let addresses = VringConfigData {
        queue_max_size: 256,
        queue_size: 256,
        flags: 0,
        desc_table_addr: 0x1000,
        used_ring_addr: 0x2000,
        avail_ring_addr: 0x3000,
        log_addr: None,
    };
    front.set_vring_addr(0, &addresses).unwrap();
    front.set_vring_enable(0, true).unwrap();
    let flags = VhostUserConfigFlags::empty();
    let (_, config) = front.get_config(0x100, 3, flags, &[1, 2, 3]).unwrap();
    assert_eq!(config, [2, 3, 4]);
    let wanted = VhostUserInflight::new(4096, 0, 2, 256);
    let (inflight, file) = front.get_inflight_fd(&wanted).unwrap();
    assert_eq!((inflight.num_queues, inflight.queue_size), (2, 256));
    assert!(same_file(&file, &files[2]));
    front.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
    assert_eq!(front.get_vring_base(0).unwrap(), 42);
    front.reset_device().unwrap();
    drop(front);

    let log = serving.join().unwrap();
    let table = log.iter().find_map(|message| match message {
        FrontMessage::SetMemTable(table) => Some(table),
        _ => None,
    });
    let table = table.expect("no memory table came");
    for (n, (got, fd)) in table.iter().enumerate() {
        assert_eq!(*got, region(n as u64 + 1));
        assert!(same_file(fd, &files[n]));
    }
    let came = |wanted: &dyn Fn(&FrontMessage) -> bool| {
        assert_eq!(log.iter().filter(|message| wanted(message)).count(), 1);
    };
    came(&|m| matches!(m, FrontMessage::SetFeatures(FEATURES)));
    came(&|m| matches!(m, FrontMessage::SetOwner));
    came(&|m| matches!(m, FrontMessage::AddMemReg { region: r, .. } if *r == region(3)));
    came(
        &|m| matches!(m, FrontMessage::RemMemReg(r) if r.guest_address == region(3).guest_address),
    );
    came(&|m| matches!(m, FrontMessage::SetVringNum(VringState { index: 0, num: 256 })));
    came(&|m| matches!(m, FrontMessage::SetVringBase(VringState { index: 0, num: 7 })));
    came(&|m| {
        let addr = VringAddr {
            index: 0,
            flags: 0,
            descriptor: 0x1000,
            used: 0x2000,
            available: 0x3000,
            log: 0,
        };
        matches!(m, FrontMessage::SetVringAddr(a) if *a == addr)
    });
    came(&|m| matches!(m, FrontMessage::SetVringEnable { index: 0, enable: true }));
    came(&|m| matches!(m, FrontMessage::SetInflightFd { .. }));
    came(&|m| matches!(m, FrontMessage::GetVringBase { index: 0 }));
    came(&|m| matches!(m, FrontMessage::ResetDevice));
}
