//! Two guests exchange frames, and tshark reads the capture.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;
use weir_config::{Config, Defaults, SocketPath};
use weir_testing::eventually;
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{Mac, Offload};

use super::*;
use crate::Switch;

const A: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const B: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];

struct Rig {
    switch: Arc<Switch>,
    dir: TempDir,
}

/// A file whose content the test can read while it is written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn request(ports: &[&str]) -> CaptureRequest {
    CaptureRequest {
        ports: ports.iter().map(|port| name(port)).collect(),
        direction: None,
        drops: false,
        filter: Expression::default(),
        snap_len: None,
        frames_max: None,
    }
}

impl Rig {
    fn new(vifs: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let control = SocketPath::try_from(dir.path().join("control.sock").as_path()).unwrap();
        let defaults = Defaults { control, control_named: true, keeper: None };
        let config = Config::from_toml("weir.toml", vifs, &defaults).unwrap();
        Self { switch: Switch::start(&config).unwrap(), dir }
    }

    fn guest(&self, vif: &str, mac: [u8; 6]) -> (Vif, QueuePair) {
        let socket = self.dir.path().join(format!("{vif}.sock"));
        let mut guest = Vif::connect(socket, &Options::new(Mac(mac))).unwrap();
        let pair = guest.queue_pairs().remove(0);
        let port = self.switch.vif(&name(vif)).unwrap();
        eventually("its rings start", || (port.rx_queues() == 1).then_some(()));
        (guest, pair)
    }

    /// tshark's output for the fields of each frame captured while `talk` runs, once there are `frames`.
    fn captured(
        &self,
        request: CaptureRequest,
        frames: usize,
        fields: &[&str],
        talk: impl FnOnce(),
    ) -> (Vec<String>, Recorded) {
        let recording = self.switch.capture(request).unwrap();
        let (file, ends) = (Shared::default(), AtomicBool::new(false));
        let recorded = thread::scope(|scope| {
            let stops = weir_testing::SetAtEnd(&ends);
            let writing = scope.spawn(|| {
                recording.write_to(file.clone(), || !ends.load(Ordering::Relaxed)).unwrap()
            });
            talk();
            eventually("the frames are written", || {
                (tshark(&file.0.lock().unwrap(), &["frame.number"]).len() >= frames).then_some(())
            });
            drop(stops);
            writing.join().unwrap()
        });
        let bytes = file.0.lock().unwrap();
        (tshark(&bytes, fields), recorded)
    }
}

fn send(pair: &mut QueuePair, to: [u8; 6], payload: &[u8]) {
    let frame = [&to[..], &pair.mac().0, payload].concat();
    pair.send(&frame, &Offload::NONE).unwrap();
    pair.flush();
}

/// A UDP datagram from port 4000 to `port`, after the Ethernet addresses.
fn udp(port: u16) -> Vec<u8> {
    let mut packet = vec![
        8, 0, 0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0x26, 0xcb, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f,
        0xa0,
    ];
    packet.extend(port.to_be_bytes());
    packet.extend([0, 12, 0, 0, b'w', b'e', b'i', b'r']);
    packet
}

/// The fields of each frame as the real tshark reads them.
fn tshark(bytes: &[u8], fields: &[&str]) -> Vec<String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file.path()).args(["-n", "-T", "fields", "-E", "separator=,"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark is installed");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn has_tshark() -> bool {
    weir_testing::has("tshark", "tshark")
}

#[test]
fn tshark_reads_ports_directions_and_bytes() {
    if !has_tshark() {
        return;
    }
    let rig = Rig::new("[vif.a]\n[vif.b]\n");
    let ((_a, mut a), (_b, mut b)) = (rig.guest("a", A), rig.guest("b", B));
    let fields =
        ["frame.interface_name", "frame.packet_flags_direction", "eth.src", "udp.dstport", "data"];
    let (frames, recorded) = rig.captured(request(&["a", "b", "a"]), 3, &fields, || {
        send(&mut b, [0xff; 6], &udp(4001));
        send(&mut a, B, &udp(4002));
    });
    // b's broadcast to a, and a's answer to b: sent (2, outbound) and received (1, inbound), as the guests see it.
    let mut expected = vec![
        "b,0x00000002,52:54:00:00:00:02,4001,77656972",
        "a,0x00000001,52:54:00:00:00:02,4001,77656972",
        "a,0x00000002,52:54:00:00:00:01,4002,77656972",
        "b,0x00000001,52:54:00:00:00:01,4002,77656972",
    ];
    let mut frames = frames;
    frames.sort();
    expected.sort();
    assert_eq!(frames, expected);
    assert_eq!((recorded.written, recorded.lost), (4, 0));
}

#[test]
fn a_filter_a_direction_a_snap_length_and_a_number_of_frames_hold() {
    if !has_tshark() {
        return;
    }
    let rig = Rig::new("[vif.a]\n[vif.b]\n");
    let ((_a, mut a), (_b, mut b)) = (rig.guest("a", A), rig.guest("b", B));
    let wanted = CaptureRequest {
        direction: Some(Direction::Tx),
        filter: "udp dst port 4002 or udp dst port 4003".parse().unwrap(),
        snap_len: Some(20),
        frames_max: Some(2),
        ..request(&["a"])
    };
    let fields = ["frame.number", "frame.len", "frame.cap_len"];
    let (frames, recorded) = rig.captured(wanted, 2, &fields, || {
        send(&mut b, [0xff; 6], &udp(4002));
        for port in 4001..=4005 {
            send(&mut a, [0xff; 6], &udp(port));
        }
    });
    assert_eq!(frames, ["1,46,20", "2,46,20"]);
    assert_eq!((recorded.written, recorded.lost), (2, 0));
}

#[test]
fn a_dropped_frame_comes_with_its_reason() {
    if !has_tshark() {
        return;
    }
    let rig = Rig::new(
        "[vif.a]\n[[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"udp dst port 4002\"\n",
    );
    let (_a, mut a) = rig.guest("a", A);
    let wanted = CaptureRequest { drops: true, ..request(&["a"]) };
    let fields = ["udp.dstport", "frame.comment"];
    let (frames, _) = rig.captured(wanted, 1, &fields, || {
        send(&mut a, [0xff; 6], &udp(4001));
        send(&mut a, [0xff; 6], &udp(4002));
        // A group address that bridges do not forward.
        send(&mut a, [1, 0x80, 0xc2, 0, 0, 0], &udp(4003));
    });
    let all = ["4002,dropped: filtered_tx", "4003,dropped: reserved_group_address"];
    assert!(!frames.is_empty() && frames.iter().all(|frame| all.contains(&&**frame)), "{frames:?}");
}

#[test]
fn a_frame_that_a_group_refuses_comes_with_its_direction() {
    if !has_tshark() {
        return;
    }
    let groups = "[group.shut]\ndefault_out = \"deny\"\n";
    let rig = Rig::new(&format!("{groups}[vif.a]\n[vif.b]\ngroups = [\"shut\"]\n"));
    let ((_a, mut a), (_b, mut b)) = (rig.guest("a", A), rig.guest("b", B));
    let wanted = CaptureRequest { drops: true, ..request(&["b"]) };
    let fields = ["eth.src", "udp.dstport", "frame.comment"];
    let (mut frames, _) = rig.captured(wanted, 2, &fields, || {
        send(&mut a, B, &udp(4001));
        send(&mut b, A, &udp(4002));
    });
    frames.sort();
    let all =
        ["52:54:00:00:00:01,4001,dropped: group_in", "52:54:00:00:00:02,4002,dropped: group_out"];
    assert_eq!(frames, all);
}

#[test]
fn what_a_slow_reader_loses_is_in_the_file() {
    if !has_tshark() {
        return;
    }
    let rig = Rig::new("[vif.a]\n[vif.b]\n");
    let ((_a, mut a), _b) = (rig.guest("a", A), rig.guest("b", B));
    let mut recording = rig.switch.capture(request(&["a"])).unwrap();
    // Frames are sent without a reader until some are lost.
    let payload = [&udp(4001)[..], &[0; 1400]].concat();
    let frame = [&[0xff; 6][..], &A, &payload].concat();
    eventually("the ring is full", || {
        for _ in 0..100 {
            if a.send(&frame, &Offload::NONE).is_err() {
                break;
            }
        }
        a.flush();
        (recording.capture.counted()[0].lost > 0).then_some(())
    });
    recording.capture.stop();
    let file = Shared::default();
    let recorded = recording.write_to(file.clone(), || false).unwrap();
    assert!(recorded.lost > 0);
    let bytes = file.0.lock().unwrap();
    assert_eq!(tshark(&bytes, &["frame.number"]).len() as u64, recorded.written);
    let mut path = tempfile::NamedTempFile::new().unwrap();
    path.write_all(&bytes).unwrap();
    let said = Command::new("capinfos").arg("-I").arg(path.path()).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let reader = pcap_file::pcapng::PcapNgReader::new(&bytes[..]);
    let mut reader = reader.unwrap();
    let mut dropped = None;
    while let Some(block) = reader.next_block() {
        if let pcap_file::pcapng::Block::InterfaceStatistics(block) = block.unwrap() {
            dropped = block.options.iter().find_map(|option| match option {
                pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption::IsbIfDrop(n) => Some(*n),
                _ => None,
            });
        }
    }
    assert_eq!(dropped, Some(recorded.lost));
    assert!(said.contains("Name = a"), "{said}");
}

#[test]
fn a_reader_that_leaves_ends_the_recording() {
    let rig = Rig::new("[vif.a]\n");
    let (_a, mut a) = rig.guest("a", A);
    let recording = rig.switch.capture(request(&["a"])).unwrap();
    let (reader, pipe) = io::pipe().unwrap();
    drop(reader);
    let error = recording.write_to(pipe, || true).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    send(&mut a, [0xff; 6], &udp(1));
}

#[test]
fn a_name_that_is_not_there_is_refused() {
    let rig = Rig::new("[vif.a]\n");
    let refused = rig.switch.capture(request(&["a", "z"])).err().unwrap();
    assert_eq!(refused.to_string(), "there is no interface or uplink called z");
}
