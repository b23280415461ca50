//! `weir trace`: the path of a frame through the switch. `weir capture`: frames of the running switch, to a file, a pipe,
//! or as lines.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use weir_api::{Client, ClientError};
use weir_config::{Defaults, NetworkConfig, PortName};
use weir_foreign::place;
use weir_switch::control::AddressEntry;
use weir_switch::stats::PortKind;
use weir_switch::trace::{FollowedFrame, FollowedStep, Trace, TraceStep};
use weir_wire::Mac;

use super::{CommandError, write_as};
use crate::args::{CaptureArgs, TraceArgs};
use crate::captured::{Captured, Form, headers, time_of_day};
use crate::frame;

/// `weir capture`; `out` is for lines. Ends with the stream, or on SIGINT and SIGTERM.
///
/// # Errors
/// [`CommandError::Client`] if the switch refuses, [`CommandError::Output`] if the frames cannot be written.
pub fn capture(
    args: &CaptureArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let standard = Path::new("-");
    let mut file: Box<dyn Write>;
    let form = match args.write.as_deref() {
        None => Form::Lines(out),
        Some(path) if path == standard && io::stdout().is_terminal() => {
            return Err(CommandError::Terminal);
        }
        Some(path) => {
            file = match path == standard {
                true => Box::new(io::stdout()),
                false => Box::new(Later { path: path.to_owned(), file: None }),
            };
            Form::Pcapng(&mut *file)
        }
    };
    let mut client = Client::connect(defaults.control.as_path())?;
    let ended = end_on_signals(client.socket()?)?;
    let mut captured = Captured::new(form);
    let mut written = Ok(());
    let streamed = client.capture(&args.request(), |bytes| {
        written = captured.take(bytes);
        written.is_ok()
    });
    written?;
    match streamed {
        // The signal ended the connection in the middle of an answer.
        Err(ClientError::NoAnswer { .. }) if ended.load(Ordering::SeqCst) => {}
        streamed => streamed?,
    }
    eprintln!("{}", captured.summary());
    Ok(())
}

/// A file that is created with its first bytes, so that a refused capture does not touch an existing file.
struct Later {
    path: PathBuf,
    file: Option<File>,
}

impl Write for Later {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(place::create(&self.path).map_err(|error| {
                let error = named(error);
                let help = "name a file in a directory that is there and that this user may write";
                io::Error::new(error.kind(), format!("{error}: {help}"))
            })?),
        };
        file.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends the connection on a signal. The file then has the whole blocks received so far.
fn end_on_signals(socket: UnixStream) -> io::Result<Arc<AtomicBool>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    thread::Builder::new().name("weir-signals".into()).spawn(move || {
        for _ in signals.forever() {
            end.store(true, Ordering::SeqCst);
            // The shutdown fails only if the switch has ended. In that case the stream ends, too.
            let _ = socket.shutdown(Shutdown::Both);
        }
    })?;
    Ok(ended)
}

/// The default source address of a frame from an uplink, which belongs to no station (RFC 7042 section 2.1.2).
const SOMEBODY: Mac = Mac([0x02, 0, 0x5e, 0x90, 0x10, 0]);
/// The first word of a pcapng file, which is the same in both byte orders.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// `weir trace`
///
/// # Errors
/// [`CommandError::Frame`] if the argument describes no frame, [`CommandError::Client`] as for all commands.
pub fn trace(
    args: &TraceArgs,
    defaults: &Defaults,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let mut client = Client::connect(defaults.control.as_path())?;
    if args.live {
        return follow(client, args, out);
    }
    let bytes = match (&args.hex, &args.pcap) {
        (Some(hex), _) => frame::hex(hex).map_err(bad)?,
        (None, Some(file)) => frame_of(file, args.number)?,
        (None, None) => {
            let source = source(&mut client, &args.name)?;
            let text = args.frame.as_deref().unwrap_or_default();
            let mut destination = Mac::BROADCAST;
            if let Some(ip) = frame::station_asked_for(text).map_err(bad)? {
                let (mac, note) = station(&client.addresses()?, &args.name, ip);
                eprintln!("note: {note}");
                destination = mac.unwrap_or(destination);
            }
            frame::described(text, source, destination).map_err(bad)?
        }
    };
    let trace = client.trace(&args.name, bytes)?;
    write_as(out, args.json, &trace, lines(&trace))
}

/// `weir trace --live`
fn follow(mut client: Client, args: &TraceArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let ended = end_on_signals(client.socket()?)?;
    let (mut frames, mut told) = (0, Ok(()));
    let streamed = client.follow(&args.name, &args.request(), |frame| {
        frames += 1;
        let said = match args.json {
            true => serde_json::to_string(&frame)
                .map_err(io::Error::from)
                .and_then(|line| writeln!(out, "{line}")),
            false => write!(out, "{}", followed(&frame)),
        };
        told = said.and_then(|()| out.flush());
        told.is_ok()
    });
    told?;
    match streamed {
        Err(ClientError::NoAnswer { .. }) if ended.load(Ordering::SeqCst) => {}
        streamed => streamed?,
    }
    eprintln!("{}", weir_text::count(frames, "frame"));
    Ok(())
}

/// A frame with its stages. Only numbers of the frame are shown, so that no text of a guest reaches the terminal.
fn followed(frame: &FollowedFrame) -> String {
    let bytes = frame::hex(&frame.front).unwrap_or_default();
    let at = time_of_day(Duration::from_nanos(frame.at_ns));
    let mut text = format!("{at} {}, {} bytes\n", headers(&bytes), frame.length);
    let port = frame.steps.iter().map(|it| it.step.port.len()).max().unwrap_or(0);
    for FollowedStep { after_ns, step } in &frame.steps {
        let us = *after_ns as f64 / 1000.0;
        let TraceStep { stage, port: name, says, .. } = step;
        let _ = writeln!(text, "{us:9.1} us  {stage:9}  {name:port$}  {says}");
    }
    text
}

fn bad(error: impl ToString) -> CommandError {
    CommandError::Frame(error.to_string())
}

/// The default source address of a frame from the port.
fn source(client: &mut Client, name: &PortName) -> Result<Mac, ClientError> {
    let port = client.stats()?.ports.into_iter().find(|port| port.name == *name);
    if port.is_none_or(|port| port.kind != PortKind::Vif) {
        return Ok(SOMEBODY);
    }
    let vif = client.vifs()?.into_iter().find(|vif| vif.config.name == *name);
    Ok(vif.map_or(SOMEBODY, |vif| vif.config.mac_or_derived().into()))
}

/// The station to which a guest behind `port` would send a packet for `ip`, and a note about it.
/// Without such a station it is the router of the port's network.
fn station(known: &[AddressEntry], port: &PortName, ip: IpAddr) -> (Option<Mac>, String) {
    let is_near =
        |entry: &&AddressEntry| known.iter().any(|own| own.port == *port && own.vlan == entry.vlan);
    let near = || known.iter().filter(is_near);
    let of_ip = near().find(|entry| entry.ips.contains(&ip));
    let router =
        || near().find(|entry| entry.port.as_str().starts_with(NetworkConfig::PORT_PREFIX));
    let (entry, who) = match (of_ip, of_ip.is_none().then(router).flatten()) {
        (Some(entry), _) => (entry, format!("the station of {ip}")),
        (None, Some(router)) => {
            (router, format!("the router, because no station of {ip} is known"))
        }
        (None, None) => {
            let note = "no `eth.dst`: the frame is for everybody, because no station of";
            return (None, format!("{note} {ip} is known here"));
        }
    };
    let note = format!("no `eth.dst`: the frame is for {}, {who}", entry.mac);
    (entry.mac.parse().ok(), note)
}

/// A frame of a file, by its number from 1.
fn frame_of(path: &Path, number: u64) -> Result<Vec<u8>, CommandError> {
    let unreadable = |error: &dyn ToString| {
        CommandError::Frames(format!("{}: {}", path.display(), error.to_string()))
    };
    let open = || File::open(path).map(BufReader::new).map_err(|error| unreadable(&error));
    let mut magic = [0; 4];
    open()?.read_exact(&mut magic).map_err(|error| unreadable(&error))?;
    let mut seen = 0;
    let mut is_it = || {
        seen += 1;
        seen == number
    };
    if magic == PCAPNG {
        let mut file = PcapNgReader::new(open()?).map_err(|error| unreadable(&error))?;
        while let Some(block) = file.next_block() {
            let found = match block.map_err(|error| unreadable(&error))? {
                Block::EnhancedPacket(packet) => {
                    Some((packet.interface_id, packet.data.into_owned()))
                }
                Block::SimplePacket(packet) => Some((0, packet.data.into_owned())),
                _ => None,
            };
            let Some((interface, data)) = found.filter(|_| is_it()) else { continue };
            let link =
                file.interfaces().get(interface as usize).map(|interface| interface.linktype);
            return of_ethernet(link, data).ok_or_else(|| unreadable(&"a frame of no Ethernet"));
        }
    } else {
        let mut file = PcapReader::new(open()?).map_err(|error| unreadable(&error))?;
        let link = Some(file.header().datalink);
        while let Some(packet) = file.next_packet() {
            let data = packet.map_err(|error| unreadable(&error))?.data.into_owned();
            if is_it() {
                return of_ethernet(link, data)
                    .ok_or_else(|| unreadable(&"a frame of no Ethernet"));
            }
        }
    }
    Err(unreadable(&format!("there are {seen} frames, and no frame {number}")))
}

fn of_ethernet(link: Option<DataLink>, data: Vec<u8>) -> Option<Vec<u8>> {
    (link == Some(DataLink::ETHERNET)).then_some(data)
}

/// The steps as a table without lines.
fn lines(trace: &Trace) -> String {
    let width = |of: fn(&TraceStep) -> usize| trace.steps.iter().map(of).max().unwrap_or(0);
    let (stage, port) = (width(|step| step.stage.len()), width(|step| step.port.len()));
    let line =
        |step: &TraceStep| format!("{:stage$}  {:port$}  {}\n", step.stage, step.port, step.says);
    trace.steps.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_for_the_station_of_its_address_or_else_for_the_router() {
        let entry = |vlan: u16, mac: &str, port: &str, ips: &[&str]| {
            serde_json::from_value::<AddressEntry>(serde_json::json!({
                "vlan": vlan, "mac": mac, "port": port, "ips": ips, "origin": "learned", "configured": false, "age_s": 1
            }))
            .unwrap()
        };
        let mut known = vec![
            entry(1, "52:54:00:00:00:01", "web0", &["192.0.2.1"]),
            entry(2, "52:54:00:00:00:09", "far", &["192.0.2.2"]),
            entry(1, "52:54:00:00:00:02", "db0", &["192.0.2.2", "2001:db8::2"]),
        ];
        let found = |known: &[AddressEntry], ip: &str| {
            let (mac, note) = station(known, &"web0".parse().unwrap(), ip.parse().unwrap());
            (mac.map(|mac| mac.to_string()), note)
        };
        let db0 = Some("52:54:00:00:00:02".to_owned());
        for ip in ["192.0.2.2", "2001:db8::2"] {
            let (mac, note) = found(&known, ip);
            assert_eq!(mac, db0);
            assert!(note.ends_with(&format!("52:54:00:00:00:02, the station of {ip}")), "{note}");
        }
        let (mac, note) = found(&known, "192.0.2.99");
        assert!(mac.is_none() && note.contains("for everybody"), "{note}");
        known.push(entry(2, "52:54:00:00:00:0a", "gateway.other", &[]));
        assert_eq!(found(&known, "192.0.2.99").0, None);
        known.push(entry(1, "52:54:00:00:00:0b", "gateway.lan", &[]));
        let (mac, note) = found(&known, "192.0.2.99");
        assert!(
            mac.as_deref() == Some("52:54:00:00:00:0b") && note.contains("the router"),
            "{note}"
        );
    }

    #[test]
    fn a_description_asks_for_one_station_or_none() {
        let asked = |text| frame::station_asked_for(text).unwrap();
        assert_eq!(asked("ip.dst=192.0.2.1, tcp"), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(asked("ipv6.dst=2001:db8::1"), Some("2001:db8::1".parse().unwrap()));
        for none in ["", "ip", "ip.dst=224.0.0.1", "ip.dst=255.255.255.255", "ipv6.dst=ff02::1"] {
            assert_eq!(asked(none), None, "{none}");
        }
        assert_eq!(asked("eth.dst=52:54:00:00:00:02, ip.dst=192.0.2.1"), None);
    }
}
