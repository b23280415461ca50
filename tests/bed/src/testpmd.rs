//! `dpdk-testpmd` as a client of a switch: two virtio-user devices with circulating packets.
//!
//! A packet sent on one port arrives on the other, which sends it back unchanged. A fixed number of packets thus
//! circulates as fast as the switch can carry them.
//!
//! Huge pages. DPDK programs need them; weir and its guests do not.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::mpsc::RecvTimeoutError,
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    guest_image::only_entry,
    process::{Placement, Process, Root},
};

/// Where Debian's package has it.
pub const PROGRAM: &str = "/usr/bin/dpdk-testpmd";

/// DPDK's libraries below `/usr/lib/x86_64-linux-gnu`, of which it loads those that are there.
const PLUGINS: &str = "/usr/lib/x86_64-linux-gnu/dpdk";

/// The files of some of testpmd's plugins.
pub fn plugins(names: &[&str]) -> Result<Vec<PathBuf>> {
    let dir = only_entry(Path::new(PLUGINS), "pmds-")?;
    let abi = dir.to_string_lossy().rsplit("pmds-").next().unwrap_or_default().to_owned();
    names.iter().map(|name| only_entry(&dir, &format!("librte_{name}.so.{abi}"))).collect()
}

/// Longest time for testpmd to start or to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The simple Internet mix: packet lengths without checksum, and how many of twelve packets have each length.
pub const IMIX: [(u32, u32); 3] = [(64, 7), (570, 4), (1500, 1)];

/// A run of packets of one length has as many packets as the length's share times this number. In
/// all, 192 packets are in flight.
const IMIX_RUN: u32 = 4;
const IMIX_RUNS: u32 = 4;

/// The circulating packets and their rings.
#[derive(Clone, Copy, Debug)]
pub struct Traffic<'a> {
    /// Queue pairs of each port.
    pub queues: u8,
    /// Length of each packet without its checksum, 64 to 1500.
    pub packet_bytes: u32,
    /// Packets per burst of testpmd at a ring, at most 512.
    pub burst: u32,
    /// Bursts that each queue sends at the start, which are the packets in flight per direction from then on. Keep
    /// the number well below [`Traffic::queue_size`], so that a packet always finds room and testpmd loses none.
    pub first_bursts: u32,
    /// Entries of each ring.
    pub queue_size: u16,
    /// True if packets have three lengths ([`IMIX`]). [`Traffic::packet_bytes`] and [`Traffic::first_bursts`] are
    /// ignored then.
    pub imix: bool,
    /// The rings' format.
    pub rings: Rings,
    /// True if testpmd runs without huge pages, which is slower.
    pub small_pages: bool,
    /// Buffers in the cache of each of its threads; `None` is testpmd's own choice.
    pub cache: Option<u32>,
    /// Further options of both virtio-user devices, each with a comma before it.
    pub device: &'a str,
    /// The root of another system, whose testpmd runs.
    pub root: Option<&'a Root>,
}

/// The format of rings (virtio 1.2 §2.7 and §2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// Split, with buffers used in any order.
    Split,
    /// Packed, with buffers used in any order.
    Packed,
    /// Packed, with buffers used in the order in which they were made available.
    PackedInOrder,
}

impl Default for Traffic<'_> {
    /// The shortest Ethernet packets, 128 per direction of one queue pair, with split rings of 256 entries.
    fn default() -> Self {
        Self {
            queues: 1,
            packet_bytes: 64,
            burst: 32,
            first_bursts: 4,
            imix: false,
            queue_size: 256,
            rings: Rings::Split,
            small_pages: false,
            cache: None,
            device: "",
            root: None,
        }
    }
}

/// One port of the switch under test.
#[derive(Clone, Debug)]
pub struct Link {
    /// The switch's vhost-user socket.
    pub socket: PathBuf,
    /// The Ethernet address of testpmd at this port.
    pub mac: String,
}

/// A running testpmd with two ports.
pub struct Testpmd {
    process: Process,
    dialogue: crate::process::Dialogue,
    transcript: String,
    burst: u32,
    first_bursts: u32,
    imix: bool,
}

impl Testpmd {
    /// Starts testpmd on `links` for `traffic`. All its threads are on CPU `cpu`.
    pub fn start(links: [&Link; 2], traffic: &Traffic<'_>, cpu: usize) -> Result<Self> {
        let Traffic {
            queues,
            packet_bytes,
            burst,
            first_bursts,
            imix,
            queue_size,
            rings,
            small_pages,
            cache,
            device,
            root,
        } = *traffic;
        let [first, second] = links;
        let format = match rings {
            Rings::Split => "",
            Rings::Packed => ",packed_vq=1",
            Rings::PackedInOrder => ",packed_vq=1,in_order=1",
        };
        let vdev = |number: u8, link: &Link| {
            let Link { socket, mac } = link;
            let path = socket.display();
            format!(
                "--vdev=net_virtio_user{number},path={path},queues={queues},\
                 queue_size={queue_size},mac={mac}{format}{device}"
            )
        };
        let length = format!("--txpkts={packet_bytes}");
        let burst_option = format!("--burst={burst}");
        let (rxd, txd) = (format!("--rxd={queue_size}"), format!("--txd={queue_size}"));
        let lcores = format!("--lcores=0@{cpu},1@{cpu}");
        let (vdev0, vdev1) = (vdev(0, first), vdev(1, second));
        // Packets of a port are addressed to the other port, so that the switch has to learn addresses.
        let (peer0, peer1) =
            (format!("--eth-peer=0,{}", second.mac), format!("--eth-peer=1,{}", first.mac));
        let (rxq, txq) = (format!("--rxq={queues}"), format!("--txq={queues}"));
        // Another process must be able to map the memory.
        let pages: &[_] =
            if small_pages { &["--no-huge"] } else { &["--single-file-segments", "--in-memory"] };
        let argv = [
            "stdbuf",
            "-oL",
            "dpdk-testpmd",
            &lcores,
            "--no-pci",
            "-m",
            "256",
            "--no-telemetry",
            // Logs the chosen path through each ring.
            "--log-level=pmd.net.virtio.init:info",
            // Enables the vectorised paths for packed rings.
            "--force-max-simd-bitwidth=512",
            &vdev0,
            &vdev1,
            "--",
            "--interactive",
            "--nb-cores=1",
            "--forward-mode=io",
            "--record-core-cycles",
            "--total-num-mbufs=16384",
            "--txonly-multi-flow",
            &length,
            &burst_option,
            &rxd,
            &txd,
            &rxq,
            &txq,
            &peer0,
            &peer1,
        ];
        // Packets in the rings must survive the restart of forwarding.
        let keeps: &[_] = if imix { &["--no-flush-rx"] } else { &[] };
        let cache = cache.map(|buffers| format!("--mbcache={buffers}"));
        let cache: Vec<_> = cache.as_deref().into_iter().collect();
        // Memory options follow the program's name.
        let (program, options) = argv.split_at(3);
        let argv = [program, pages, options, keeps, &cache].concat();
        let placement = Placement { root: root.cloned(), ..Placement::default() };
        let (process, dialogue) = Process::start_dialogue(&argv, &placement)?;
        let transcript = String::new();
        let mut testpmd = Self { process, dialogue, transcript, burst, first_bursts, imix };
        testpmd.await_line("its ports to start", |line| line.trim() == "Done")?;
        // testpmd continues without a device that failed.
        if testpmd.has_said("failed to initialize") {
            let what = format!("testpmd lacks a device\n{}", testpmd.transcript);
            return Err(Error::Check(what));
        }
        Ok(testpmd)
    }

    /// Sends the first packets and forwards from then on.
    pub fn circulate(&mut self) -> Result<()> {
        if !self.imix {
            return self.send_first(self.first_bursts);
        }
        // The packets of earlier runs wait in the rings meanwhile.
        self.command(&format!("set burst {IMIX_RUN}"))?;
        for _ in 0..IMIX_RUNS {
            for (bytes, share) in IMIX {
                self.command(&format!("set txpkts {bytes}"))?;
                self.send_first(share)?;
                self.pause()?;
            }
        }
        self.command(&format!("set burst {}", self.burst))?;
        self.command("start")?;
        self.await_line("forwarding to start", |line| line.contains("packet forwarding"))
    }

    fn send_first(&mut self, bursts: u32) -> Result<()> {
        self.command(&format!("start tx_first {bursts}"))?;
        self.await_line("forwarding to start", |line| line.contains("packet forwarding"))
    }

    /// Packets received so far, the sum of both ports.
    pub fn received(&mut self) -> Result<u64> {
        self.command("show port stats all")?;
        let mut total = 0;
        for _ in 0..2 {
            let mut count = None;
            self.await_line("port statistics", |line| {
                count = rx_packets(line);
                count.is_some()
            })?;
            total += count.unwrap_or(0);
        }
        Ok(total)
    }

    /// Packets received per second over `time`, the sum of both ports.
    pub fn packets_per_second(&mut self, time: Duration) -> Result<f64> {
        let (start, before) = (Instant::now(), self.received()?);
        thread::sleep(time);
        let after = self.received()?;
        let packets = u32::try_from(after.saturating_sub(before)).unwrap_or(u32::MAX);
        Ok(f64::from(packets) / start.elapsed().as_secs_f64())
    }

    /// Packets per second that testpmd's core could receive and send back without waits. It is computed from the time
    /// for the packets so far, without empty polls.
    pub fn limit(&mut self) -> Result<f64> {
        self.command("show fwd stats all")?;
        let mut limit = None;
        self.await_line("forwarding statistics", |line| {
            limit = core_limit(line);
            limit.is_some()
        })?;
        limit.ok_or_else(|| Error::Check("testpmd counted no cycles".into()))
    }

    /// Ends testpmd with its `quit` command, so that the session with the switch ends in order.
    pub fn quit(mut self) -> Result<()> {
        self.command("quit")?;
        let what = "testpmd to end after `quit`";
        crate::process::wait_until(what, PATIENCE, || Ok(self.process.ended()?.is_some()))
    }

    /// True if testpmd has printed `words`.
    pub fn has_said(&self, words: &str) -> bool {
        self.transcript.contains(words)
    }

    /// testpmd's log lines on its paths through the rings.
    pub fn paths(&self) -> String {
        let paths = self.transcript.lines().filter(|line| line.contains(" path "));
        paths.collect::<Vec<_>>().join("; ")
    }

    /// Makes testpmd answer ARP and ping on both ports from now on.
    pub fn answer(&mut self) -> Result<()> {
        self.command("set fwd icmpecho")?;
        self.command("start")?;
        self.await_line("answering to start", |line| line.contains("packet forwarding"))
    }

    /// Stops forwarding. Packets circulate again after [`Testpmd::circulate`].
    pub fn pause(&mut self) -> Result<()> {
        self.command("stop")?;
        self.await_line("forwarding to stop", |line| line.trim() == "Done.")?;
        self.command("set fwd io")
    }

    fn command(&mut self, command: &str) -> Result<()> {
        writeln!(self.dialogue.stdin, "{command}")
            .map_err(|source| Error::Io { what: format!("tell testpmd `{command}`"), source })
    }

    fn await_line(&mut self, what: &str, mut found: impl FnMut(&str) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let patience = deadline.saturating_duration_since(Instant::now());
            let line = self.dialogue.lines.recv_timeout(patience).map_err(|error| match error {
                RecvTimeoutError::Timeout => Error::Timeout {
                    what: format!("testpmd: {what}\n{}", self.transcript),
                    after: PATIENCE,
                },
                RecvTimeoutError::Disconnected => {
                    Error::Check(format!("testpmd ended, awaiting {what}\n{}", self.transcript))
                }
            })?;
            self.transcript.push_str(&line);
            self.transcript.push('\n');
            if found(&line) {
                return Ok(());
            }
        }
    }
}

/// The count in a line of `show port stats`, as `RX-packets: 23663616   RX-missed: 0 ...`.
fn rx_packets(line: &str) -> Option<u64> {
    line.split("RX-packets:").nth(1)?.split_whitespace().next()?.parse().ok()
}

/// Packets per second of a core, from a line of `show fwd stats`, as
/// `CPU cycles/packet=46.23 (busy cycles=92460 / total io packets=2000) at 2100 MHz Clock`.
fn core_limit(line: &str) -> Option<f64> {
    let (_, figures) = line.split_once("CPU cycles/packet=")?;
    let cycles: f64 = figures.split_whitespace().next()?.parse().ok()?;
    let (_, clock) = figures.rsplit_once(" at ")?;
    let mhz: f64 = clock.split_whitespace().next()?.parse().ok()?;
    (cycles > 0.0).then(|| mhz * 1e6 / cycles)
}

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// A write of 1 makes the kernel drop cached files, which lie between free pages.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// A write makes the kernel move pages, so that free memory is in one piece.
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Attempts: memory that is full of cached files may not be free in large pieces at once.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// Need of testpmd in pages of 2 MiB: its 256 MiB, and its rings.
const CLIENT: u64 = 136;
/// Need of OVS-DPDK and testpmd together.
const SWITCH_AND_CLIENT: u64 = 512;

/// A reservation of huge pages. The former number is restored when it is dropped.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// Reserves the pages for one switch and one client, unless they are reserved already.
    pub fn reserve() -> Result<Self> {
        Self::at_least(SWITCH_AND_CLIENT)
    }

    /// Reserves the pages for one client, unless they are reserved already.
    pub fn for_client() -> Result<Self> {
        Self::at_least(CLIENT)
    }

    fn at_least(needed: u64) -> Result<Self> {
        let before = reserved()?;
        let pages = Self { before };
        let mut now = before;
        for attempt in 0..ATTEMPTS {
            if now >= needed {
                break;
            }
            if attempt > 0 {
                // Without the right to do this, the next attempt may still succeed.
                let _ = fs::write(DROP_CACHES, "1");
                let _ = fs::write(COMPACT, "1");
                thread::sleep(PAUSE);
            }
            set(needed)?;
            now = reserved()?;
        }
        if now < needed {
            let what = format!("{needed} huge pages of 2 MiB: the kernel gave {now}");
            return Err(Error::Check(what));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = set(self.before);
    }
}

fn reserved() -> Result<u64> {
    let path = Path::new(RESERVED);
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    text.trim().parse().map_err(|_| Error::parse("a number of huge pages", text))
}

fn set(pages: u64) -> Result<()> {
    let path = Path::new(RESERVED);
    fs::write(path, pages.to_string()).map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_has_the_mean_length_that_it_is_known_for_and_fits_a_ring() {
        let packets: u32 = IMIX.iter().map(|(_, share)| share).sum();
        let bytes: u32 = IMIX.iter().map(|(bytes, share)| bytes * share).sum();
        assert_eq!((packets, bytes / packets), (12, 352));
        assert!(IMIX_RUNS * IMIX_RUN * packets <= 256);
    }

    #[test]
    fn a_cores_limit_is_read_from_its_cycles() {
        let line =
            "  CPU cycles/packet=50.00 (busy cycles=100 / total io packets=2) at 2000 MHz Clock";
        assert_eq!(core_limit(line), Some(40e6));
        assert_eq!(core_limit("  CPU cycles/packet=0.00 (a / b) at 2000 MHz Clock"), None);
        assert_eq!(core_limit("  RX-packets: 1"), None);
    }

    #[test]
    fn received_packets_are_read_from_a_statistics_line() {
        let line = "  RX-packets: 23663616   RX-missed: 0          RX-bytes:  1514471424";
        assert_eq!(rx_packets(line), Some(23_663_616));
        assert_eq!(rx_packets("  TX-packets: 23664032   TX-errors: 0"), None);
    }
}
