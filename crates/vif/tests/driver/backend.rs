//! A back end in a thread: an independent, simple peer that connects two interfaces, or one with
//! itself. It sleeps without a timeout, so that a lost wake-up is a stuck test.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_FEATURES_OK;
use weir_guestmem::{GuestMemory, RegionSpec, Slice};
use weir_ring::{Addresses, DeviceRing, Direction};
use weir_vhost_user::*;
use weir_vif::Features;
use weir_wire::VnetHdr;

/// Behaviour of the back end.
#[derive(Debug, Clone)]
pub struct Config {
    /// Virtio features offered.
    pub features: Features,
    /// Protocol features offered.
    pub protocol: u64,
    /// Queue pairs.
    pub queue_pairs: u64,
    /// Request that fails.
    pub refuse: Option<Request>,
    /// Takes `FEATURES_OK` back.
    pub refuse_features: bool,
    /// Returns true for the number of a frame to lose, counted from 1.
    pub lose: fn(u64) -> bool,
}

impl Default for Config {
    fn default() -> Self {
        let protocol = [
            VHOST_USER_PROTOCOL_F_MQ,
            VHOST_USER_PROTOCOL_F_REPLY_ACK,
            VHOST_USER_PROTOCOL_F_MTU,
            VHOST_USER_PROTOCOL_F_RARP,
            VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
            VHOST_USER_PROTOCOL_F_STATUS,
        ];
        Self {
            features: Features::ALL,
            protocol: protocol.iter().map(|bit| 1u64 << bit).sum(),
            queue_pairs: 8,
            refuse: None,
            refuse_features: false,
            lose: |_| false,
        }
    }
}

/// Record of a port's session.
#[derive(Debug, Default)]
pub struct Report {
    /// The requests, in order.
    pub requests: Vec<RequestCode>,
    /// `SET_FEATURES`.
    pub features: u64,
    /// `SET_PROTOCOL_FEATURES`.
    pub protocol: u64,
    /// The last `SET_STATUS`.
    pub status: u64,
    /// `NET_SET_MTU`.
    pub mtu: Option<u64>,
}

/// The back end's thread. It ends when every port is disconnected.
pub struct Backend(JoinHandle<Vec<Report>>);

impl Backend {
    /// Serves these sockets. Port n is connected with port n ^ 1, or with itself if there is none.
    pub fn start(config: &Config, sockets: Vec<UnixStream>) -> Self {
        let config = config.clone();
        Self(std::thread::spawn(move || {
            let ports = sockets.into_iter().map(Port::new).collect();
            Switch { config, ports, frames: 0 }.run()
        }))
    }

    /// Serves one port. Returns the other end of its socket.
    pub fn echo(config: &Config) -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Self::start(config, vec![theirs]), ours)
    }

    /// Serves two connected ports.
    pub fn pair(config: &Config) -> (Self, [UnixStream; 2]) {
        let (a, b) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        (Self::start(config, vec![a.1, b.1]), [a.0, b.0])
    }

    /// Waits for the thread's end.
    pub fn join(self) -> Vec<Report> {
        self.0.join().unwrap()
    }
}

#[derive(Default)]
struct Ring {
    size: u16,
    base: u32,
    at: Addresses,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    enabled: bool,
    device: Option<DeviceRing>,
}

impl Ring {
    fn call_if_wanted(&mut self) {
        if self.device.as_mut().is_some_and(DeviceRing::needs_call)
            && let Some(call) = &self.call
        {
            rustix::io::write(call, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

struct Port {
    /// The connection; `None` once it is closed.
    connection: Option<Connection>,
    memory: Arc<GuestMemory>,
    rings: Vec<Ring>,
    report: Report,
}

impl Port {
    fn new(socket: UnixStream) -> Self {
        Self {
            connection: Some(Connection::new(socket)),
            memory: Arc::default(),
            rings: (0..16).map(|_| Ring::default()).collect(),
            report: Report::default(),
        }
    }

    fn has(&self, feature: Features) -> bool {
        Features(self.report.features).contains(feature)
    }

    fn map(&mut self, regions: Vec<(MemoryRegion, OwnedFd)>) {
        let mut memory = GuestMemory::default();
        for (region, fd) in regions {
            let spec = RegionSpec {
                guest_address: region.guest_address,
                size: region.size,
                user_address: region.user_address,
                mmap_offset: region.mmap_offset,
            };
            memory.add(spec, &File::from(fd)).unwrap();
        }
        self.memory = Arc::new(memory);
    }

    /// Handles a message from the socket.
    fn serve(&mut self, config: &Config) {
        while let Some(connection) = &mut self.connection {
            match connection.receive() {
                Ok(Some(incoming)) => self.handle(incoming, config),
                Ok(None) => return,
                Err(ConnectionError::Closed) => self.close(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn close(&mut self) {
        self.connection = None;
        self.rings.clear();
        self.memory = Arc::default();
    }

    fn handle(&mut self, incoming: Incoming, config: &Config) {
        let Incoming { request, need_reply, message } = incoming;
        self.report.requests.push(request);
        let refused = config.refuse.is_some_and(|refused| request == refused);
        let Some(connection) = &mut self.connection else {
            return;
        };
        let rings = &mut self.rings;
        match message {
            FrontMessage::GetFeatures => {
                return connection.reply_u64(request, config.features.0).unwrap();
            }
            FrontMessage::GetProtocolFeatures => {
                return connection.reply_u64(request, config.protocol).unwrap();
            }
            FrontMessage::GetQueueNum => {
                return connection.reply_u64(request, config.queue_pairs).unwrap();
            }
            FrontMessage::GetMaxMemSlots => return connection.reply_u64(request, 8).unwrap(),
            FrontMessage::GetStatus => {
                let mut status = self.report.status;
                if config.refuse_features {
                    status &= !u64::from(VIRTIO_CONFIG_S_FEATURES_OK);
                }
                return connection.reply_u64(request, status).unwrap();
            }
            FrontMessage::GetVringBase { index } => {
                let ring = &mut rings[index as usize];
                let num = ring.device.take().map_or(0, |device| device.base());
                ring.kick = None;
                return connection.reply(request, VringState { index, num }).unwrap();
            }
            _ if refused => {}
            FrontMessage::SetFeatures(features) => self.report.features = features,
            FrontMessage::SetStatus(status) => self.report.status = status,
            FrontMessage::NetSetMtu(mtu) => self.report.mtu = Some(mtu),
            FrontMessage::SetMemTable(regions) => self.map(regions),
            FrontMessage::AddMemReg { region, fd } => self.map(vec![(region, fd)]),
            FrontMessage::SetVringNum(VringState { index, num }) => {
                rings[index as usize].size = num.try_into().unwrap();
            }
            FrontMessage::SetVringBase(VringState { index, num }) => {
                rings[index as usize].base = num;
            }
            FrontMessage::SetVringAddr(addr) => {
                rings[addr.index as usize].at = Addresses {
                    descriptor: addr.descriptor,
                    driver: addr.available,
                    device: addr.used,
                };
            }
            FrontMessage::SetVringKick { index, fd } => rings[index as usize].kick = fd,
            FrontMessage::SetVringCall { index, fd } => rings[index as usize].call = fd,
            FrontMessage::SetVringEnable { index, enable } => {
                rings[index as usize].enabled = enable;
            }
            FrontMessage::SetProtocolFeatures(protocol) => self.report.protocol = protocol,
            FrontMessage::SetOwner
            | FrontMessage::SendRarp(_)
            | FrontMessage::SetVringErr { .. } => {}
            other => panic!("unexpected {other:?}"),
        }
        if need_reply && let Some(connection) = &mut self.connection {
            connection.ack(request, !refused).unwrap();
        }
    }

    /// Starts a ring at its first kick.
    fn kicked(&mut self, index: usize) {
        let config = Features(self.report.features).ring(self.rings[index].size);
        let ring = &mut self.rings[index];
        if let Some(kick) = &ring.kick {
            rustix::io::read(kick, &mut [0; 8]).unwrap();
            if ring.device.is_none() {
                let device = DeviceRing::new(&self.memory, config, &ring.at, ring.base);
                ring.device = Some(device.unwrap());
            }
        }
    }
}

struct Switch {
    config: Config,
    ports: Vec<Port>,
    frames: u64,
}

impl Switch {
    fn run(mut self) -> Vec<Report> {
        while self.ports.iter().any(|port| port.connection.is_some()) {
            while self.forward_all() {}
            if !self.came_meanwhile() {
                self.sleep();
            }
        }
        self.ports.into_iter().map(|port| port.report).collect()
    }

    fn peer(&self, port: usize) -> usize {
        if port ^ 1 < self.ports.len() { port ^ 1 } else { port }
    }

    fn forward_all(&mut self) -> bool {
        let mut moved = false;
        for port in 0..self.ports.len() {
            for pair in 0..self.ports[port].rings.len() / 2 {
                while self.forward(port, pair) {
                    moved = true;
                }
            }
        }
        moved
    }

    /// Moves one frame. Returns `false` if there is none, or no room for it.
    fn forward(&mut self, port: usize, pair: usize) -> bool {
        let peer = self.peer(port);
        let (tx_index, rx_index) = (2 * pair + 1, 2 * pair);
        let tx_memory = Arc::clone(&self.ports[port].memory);
        let rx_memory = Arc::clone(&self.ports[peer].memory);
        let mergeable = self.ports[peer].has(Features::MRG_RXBUF);
        if self.ports[peer].rings.is_empty() {
            return false;
        }
        let mut tx_device = self.ports[port].rings[tx_index].device.take();
        let mut rx_device = self.ports[peer].rings[rx_index].device.take();
        let mut moved = false;
        if let Some(tx) = &mut tx_device {
            tx.refill().unwrap();
            let mut from = Vec::new();
            if let Some(chain) = tx.take(Direction::Readable, &tx_memory, &mut from).unwrap() {
                self.frames += 1;
                let lost = (self.config.lose)(self.frames);
                moved = lost
                    || rx_device.as_mut().is_some_and(|rx| {
                        deliver(&from, chain.len as usize, rx, &rx_memory, mergeable)
                    });
                if moved {
                    tx.complete(chain.token, 0);
                    tx.publish();
                } else {
                    tx.give_back([chain.token].into_iter());
                }
            }
        }
        self.ports[port].rings[tx_index].device = tx_device;
        self.ports[peer].rings[rx_index].device = rx_device;
        if moved {
            self.ports[port].rings[tx_index].call_if_wanted();
            self.ports[peer].rings[rx_index].call_if_wanted();
        }
        moved
    }

    /// Asks for kicks. Returns true if there is work already.
    fn came_meanwhile(&mut self) -> bool {
        for port in &mut self.ports {
            let memory = Arc::clone(&port.memory);
            for (index, ring) in port.rings.iter_mut().enumerate() {
                let Some(device) = &mut ring.device else {
                    continue;
                };
                // A receive ring may have buffers, but too few. Then the ring asks for the kick of the next buffers,
                // behind all present ones.
                let mut behind = Vec::new();
                if index.is_multiple_of(2) {
                    device.refill().unwrap();
                    while let Ok(Some(chain)) =
                        device.take(Direction::Writable, &memory, &mut Vec::new())
                    {
                        behind.push(chain.token);
                    }
                }
                device.enable_kicks().unwrap();
                device.give_back(behind.into_iter());
            }
        }
        self.forward_all()
    }

    fn sleep(&mut self) {
        let mut sockets = Vec::new();
        let mut kicks = Vec::new();
        {
            let mut fds = Vec::new();
            let mut who = Vec::new();
            for (number, port) in self.ports.iter().enumerate() {
                if let Some(connection) = &port.connection {
                    fds.push(PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN));
                    who.push((number, None));
                }
                for (index, ring) in port.rings.iter().enumerate() {
                    if let Some(kick) = &ring.kick {
                        fds.push(PollFd::new(kick, PollFlags::IN));
                        who.push((number, Some(index)));
                    }
                }
            }
            poll(&mut fds, None).unwrap();
            for (fd, (number, index)) in fds.iter().zip(who) {
                match index {
                    _ if fd.revents().is_empty() => {}
                    Some(index) => kicks.push((number, index)),
                    None => sockets.push(number),
                }
            }
        }
        for (number, index) in kicks {
            self.ports[number].kicked(index);
        }
        for number in sockets {
            self.ports[number].serve(&self.config);
        }
    }
}

/// Writes a frame of `len` bytes, header included, into receive buffers. Returns `false` if there
/// are too few.
fn deliver(
    from: &[Slice<'_>],
    len: usize,
    rx: &mut DeviceRing,
    memory: &GuestMemory,
    mergeable: bool,
) -> bool {
    rx.refill().unwrap();
    let mut chains = Vec::new();
    let mut room = 0;
    while room < len {
        let mut pieces = Vec::new();
        match rx.take(Direction::Writable, memory, &mut pieces).unwrap() {
            Some(chain) if mergeable || chains.is_empty() => {
                room += chain.len as usize;
                chains.push((chain, pieces));
            }
            _ => {
                rx.give_back(chains.iter().map(|(chain, _)| chain.token));
                return false;
            }
        }
    }
    let mut bytes = Vec::with_capacity(len);
    for piece in from {
        let at = bytes.len();
        bytes.resize(at + piece.len(), 0);
        piece.read(&mut bytes[at..]);
    }
    let header = bytes.first_chunk_mut::<{ VnetHdr::LEN }>().unwrap();
    let mut hdr = VnetHdr::from_bytes(header);
    assert_eq!(hdr.num_buffers, 0, "not a driver's to set");
    hdr.num_buffers = chains.len() as u16;
    *header = hdr.to_bytes();
    let mut rest = &bytes[..];
    for (chain, pieces) in chains {
        let before = rest.len();
        for piece in pieces {
            rest = &rest[piece.write(rest)..];
        }
        rx.complete(chain.token, (before - rest.len()) as u32);
    }
    assert!(rest.is_empty());
    rx.publish();
    true
}
