//! A switch with pairs of guests: a client and a server, each with its own interface.
//!
//! A single thread can poll the rings of all guests in turn. Such guests cost little and never sleep, so the
//! measurement shows the switch.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use weir_config::{
    Config, Execution, PortName, QueuePairs, Realization, SwitchConfig, VifConfig, WorkerCount,
    Workers,
};
use weir_engine::guest::State;
use weir_limits::QUEUE_SIZE_SUGGESTED;
use weir_switch::Switch;
use weir_vif::load::{Flow, Station};
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::checksum::ipv4_header_checksum;
use weir_wire::{Mac, VnetHdr};

use super::super::plan::SMALL_FRAME_BYTES;
use crate::rig::{self, RigError, pin};
use crate::steps::{BenchError, wait_for};

/// First UDP port; each flow has its own.
const CLIENT_PORT: u16 = 40_000;
const SERVER_PORT: u16 = 5_201;
/// Flow number of the guests' greetings, which do not count as traffic.
const GREETING: u16 = 20_000;
/// Offset of the IPv4 header, and of the headers behind it.
const IPV4: usize = 14;
const IPV4_CSUM: usize = IPV4 + 10;
const UDP: usize = IPV4 + 20;
/// Offset of the flow's and the frame's numbers.
const PAYLOAD: usize = UDP + 8;

/// Options of a crowd.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) pairs: usize,
    /// Queue pairs per interface.
    pub(super) queues: u8,
    pub(super) workers: u64,
    pub(super) realization: Realization,
    pub(super) execution: Execution,
}

impl Default for Setup {
    /// One pair with one queue each, and one worker that shares its core.
    fn default() -> Self {
        Self {
            pairs: 1,
            queues: 1,
            workers: 1,
            realization: Realization::Shared,
            execution: Execution::Tasklet,
        }
    }
}

/// A guest with its queues.
pub(super) struct Guest {
    /// The queues are dropped before the session ends.
    pub(super) queues: Vec<QueuePair>,
    pub(super) port: PortName,
    station: Station,
    _vif: Vif,
}

/// A client and its server.
pub(super) struct Pair {
    pub(super) client: Guest,
    pub(super) server: Guest,
}

/// A switch with pairs of guests.
pub(super) struct Crowd {
    // The fields are dropped in this order: guests disconnect before the switch ends.
    pub(super) pairs: Vec<Pair>,
    pub(super) switch: Arc<Switch>,
}

/// Returns the addresses of guest `number`.
fn station(number: usize) -> Station {
    let [.., high, low] = number.to_be_bytes();
    Station { mac: Mac([0x52, 0x54, 0, 1, high, low]), ip: Ipv4Addr::new(10, 1, high, low) }
}

/// Returns the interface of guest `number`.
pub(super) fn vif(number: usize, queues: u8, dir: &Path) -> Result<VifConfig, RigError> {
    let name = format!("guest{number}");
    let socket = rig::socket(dir, &name)?;
    let name = name.parse().expect("a valid name by construction");
    let queues = QueuePairs::try_from(u64::from(queues)).expect("a number that is valid");
    Ok(VifConfig { queues, ..VifConfig::new(name, socket) })
}

impl Crowd {
    /// Starts everything, with sockets in `dir`.
    pub(super) fn start(setup: &Setup, dir: &Path) -> Result<Self, BenchError> {
        let guests = 2 * setup.pairs;
        let vifs: Vec<_> =
            (0..guests).map(|number| vif(number, setup.queues, dir)).collect::<Result<_, _>>()?;
        let workers = WorkerCount::try_from(setup.workers).expect("a number that is valid");
        let config = SwitchConfig {
            execution: setup.execution,
            realization: setup.realization,
            workers: Workers::Count(workers),
            ..SwitchConfig::new(rig::socket(dir, "control")?)
        };
        let switch =
            Switch::start(&Config::of_vifs(config, vifs.clone())).map_err(RigError::from)?;
        let mut guests = vifs.iter().enumerate().map(|(number, vif)| Guest::connect(number, vif));
        let mut pairs = Vec::new();
        while let (Some(client), Some(server)) = (guests.next(), guests.next()) {
            pairs.push(Pair { client: client?, server: server? });
        }
        let mut crowd = Self { pairs, switch };
        crowd.introduce()?;
        Ok(crowd)
    }

    /// Lets every guest's peer and the switch learn the guest's address.
    fn introduce(&mut self) -> Result<(), BenchError> {
        for Pair { client, server } in &mut self.pairs {
            for guest in [&*client, &*server] {
                wait_for("an interface that starts", || {
                    let port = self.switch.vif(&guest.port);
                    port.is_some_and(|port| {
                        let queues = guest.queues.len();
                        port.info().state == State::Running && port.rx_queues() == queues
                    })
                })?;
            }
            let [hello, answer] =
                [Frame::new(client, server, GREETING), Frame::new(server, client, GREETING)];
            client.greet(&hello);
            wait_for("a guest's first frame", || server.hear())?;
            server.greet(&answer);
            wait_for("an answer to it", || client.hear())?;
        }
        Ok(())
    }

    /// Pins every worker to a CPU.
    pub(super) fn pin_workers(&self, cpu: usize) {
        for thread in self.switch.engine().worker_threads().into_iter().flatten() {
            pin(Some(thread), cpu);
        }
    }
}

impl Guest {
    /// Connects to the interface. `number` determines the guest's addresses.
    pub(super) fn connect(number: usize, config: &VifConfig) -> Result<Self, RigError> {
        let station = station(number);
        let options = Options {
            queues: config.queues.get().into(),
            queue_size: QUEUE_SIZE_SUGGESTED,
            ..Options::new(station.mac)
        };
        let connected = Vif::connect(config.socket.as_path(), &options);
        let mut vif = connected.map_err(|source| RigError::Connect { guest: "guest", source })?;
        let queues = vif.queue_pairs();
        Ok(Self { queues, port: config.name.clone(), station, _vif: vif })
    }

    /// Sends a frame on every queue.
    fn greet(&mut self, frame: &Frame) {
        for queue in &mut self.queues {
            // An unused ring is not full.
            let _ = queue.send_raw(&frame.bytes, &VnetHdr::default());
            queue.flush();
        }
    }

    /// Broadcasts the guest's address.
    pub(super) fn announce(&mut self) {
        let everybody = Station { mac: Mac::BROADCAST, ip: Ipv4Addr::BROADCAST };
        self.greet(&Frame::between(self.station, everybody, GREETING));
    }

    /// Receives all frames. Returns true if there were any.
    fn hear(&mut self) -> bool {
        self.queues.iter_mut().any(|queue| queue.recv(|_| ()).is_some())
    }

    /// Returns the flow for the loads of `weir_vif`.
    pub(super) fn flow_to(&self, peer: &Self) -> Flow {
        Flow {
            local: self.station,
            remote: peer.station,
            local_port: CLIENT_PORT,
            remote_port: SERVER_PORT,
        }
    }
}

/// A UDP frame with its flow's number and its own.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    bytes: [u8; SMALL_FRAME_BYTES],
}

impl Frame {
    /// Builds a frame of the flow with this number.
    pub(super) fn new(from: &Guest, to: &Guest, flow: u16) -> Self {
        Self::between(from.station, to.station, flow)
    }

    fn between(from: Station, to: Station, flow: u16) -> Self {
        let mut bytes = [0; SMALL_FRAME_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &to.mac.0);
        put(6, &from.mac.0);
        put(12, &[0x08, 0x00, 0x45, 0]);
        put(IPV4 + 2, &((SMALL_FRAME_BYTES - IPV4) as u16).to_be_bytes());
        put(IPV4 + 8, &[64, 17]);
        put(IPV4 + 12, &from.ip.octets());
        put(IPV4 + 16, &to.ip.octets());
        put(UDP, &(CLIENT_PORT + flow).to_be_bytes());
        put(UDP + 2, &SERVER_PORT.to_be_bytes());
        // No checksum, which UDP over IPv4 does not require.
        put(UDP + 4, &((SMALL_FRAME_BYTES - UDP) as u16).to_be_bytes());
        put(PAYLOAD, &flow.to_be_bytes());
        let checksum = ipv4_header_checksum(&bytes[IPV4..UDP]);
        bytes[IPV4_CSUM..IPV4_CSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        Self { bytes }
    }

    /// Offers the frame with number `seq`. Returns false if the ring is full.
    pub(super) fn send(&mut self, queue: &mut QueuePair, seq: u64) -> bool {
        self.bytes[PAYLOAD + 2..PAYLOAD + 10].copy_from_slice(&seq.to_be_bytes());
        queue.send_raw(&self.bytes, &VnetHdr::default()).is_ok()
    }
}

/// Returns the flow and the number of the next received frame, without greetings; `None` if there is none.
pub(super) fn receive(queue: &mut QueuePair) -> Option<(u16, u64)> {
    loop {
        let (flow, seq) = queue.recv(|frame| {
            let mut bytes = [0; SMALL_FRAME_BYTES];
            frame.read(&mut bytes);
            let mut seq = [0; 8];
            seq.copy_from_slice(&bytes[PAYLOAD + 2..PAYLOAD + 10]);
            (u16::from_be_bytes([bytes[PAYLOAD], bytes[PAYLOAD + 1]]), u64::from_be_bytes(seq))
        })?;
        if flow != GREETING {
            return Some((flow, seq));
        }
    }
}
