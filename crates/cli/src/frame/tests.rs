use std::io::Write;
use std::process::Command;

use super::*;

const SRC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

/// tshark's output for fields of a frame.
fn read_back(frame: &[u8], fields: &[&str]) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    // pcap: magic, version 2.4, zone, accuracy, snap length, Ethernet; then one packet at the epoch.
    for word in [
        0xa1b2_c3d4_u32,
        0x0004_0002,
        0,
        0,
        65_535,
        1,
        0,
        0,
        frame.len() as u32,
        frame.len() as u32,
    ] {
        file.write_all(&word.to_ne_bytes()).unwrap();
    }
    file.write_all(frame).unwrap();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file.path()).args(["-n", "-T", "fields", "-E", "separator=|"]);
    for check in ["ip", "tcp", "udp"] {
        command.args(["-o", &format!("{check}.check_checksum:TRUE")]);
    }
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn tshark_reads_the_fields_that_were_described_and_finds_checksums_right() {
    let cases: &[(&str, &[&str], &str)] = &[
        (
            "",
            &["eth.src", "eth.dst", "eth.type", "frame.len"],
            "52:54:00:00:00:01|ff:ff:ff:ff:ff:ff|0x88b5|60",
        ),
        (
            "eth.dst=02:00:00:00:00:09, vlan.id=7, vlan.priority=3, ip.src=10.0.0.1, ip.dst=10.0.0.2, tcp.dport=80, frame.len=100",
            &[
                "eth.dst",
                "vlan.id",
                "vlan.priority",
                "ip.src",
                "ip.dst",
                "tcp.dstport",
                "tcp.flags",
                "tcp.checksum.status",
                "ip.checksum.status",
                "frame.len",
            ],
            "02:00:00:00:00:09|7|3|10.0.0.1|10.0.0.2|80|0x0002|1|1|100",
        ),
        ("ip, udp.dstport == 53", &["udp.dstport", "udp.checksum.status", "ip.ttl"], "53|1|64"),
        (
            "ipv6.src=fe80::1, ipv6.dst=ff02::1, udp.srcport=0x222, udp.dstport=547",
            &["ipv6.src", "udp.srcport", "udp.dstport", "udp.checksum.status"],
            "fe80::1|546|547|1",
        ),
        ("icmp, ip.dst=10.0.0.2, ip.ttl=9", &["icmp.type", "ip.dst", "ip.ttl"], "8|10.0.0.2|9"),
        (
            "arp.dst.proto_ipv4=10.0.0.9, arp.opcode=1",
            &["arp.opcode", "arp.src.hw_mac", "arp.dst.proto_ipv4"],
            "1|52:54:00:00:00:01|10.0.0.9",
        ),
    ];
    if !weir_testing::has("tshark", "tshark") {
        return;
    }
    for (text, fields, expected) in cases {
        let frame = described(text, SRC, Mac::BROADCAST).unwrap();
        assert_eq!(read_back(&frame, fields), *expected, "{text}");
    }
}

#[test]
fn what_is_no_frame_says_why() {
    for (text, why) in [
        ("eth.dest=1", "`eth.dest` is not known here; there are eth, eth.dst,"),
        ("eth.dst", "`eth.dst` is no field with a value"),
        ("ip=10.0.0.1", "`ip=10.0.0.1` is no field with a value"),
        ("ip.ttl=9, ip.ttl=8", "`ip.ttl` is there twice"),
        ("ip.src=10.0.0", "`10.0.0` is no value of ip.src"),
        ("tcp.dstport=70000", "`70000` is no value of tcp.dstport"),
        ("vlan.id=4096", "`4096` is no value of vlan.id"),
        ("tcp, udp", "no frame has both tcp and udp"),
        ("ip, tcp, frame.len=20", "the headers take 54 bytes, and frame.len says 20"),
        ("frame.len=99999", "the headers take 14 bytes, and frame.len says 99999"),
    ] {
        let error = described(text, SRC, Mac::BROADCAST).unwrap_err().to_string();
        assert!(error.starts_with(why), "{text}: {error}");
    }
}

#[test]
fn hexadecimal_digits_are_bytes() {
    assert_eq!(hex("52:54 00\nfF").unwrap(), [0x52, 0x54, 0, 0xff]);
    for bad in ["5", "5g", "zz"] {
        assert_eq!(hex(bad), Err(FrameError::Hex));
    }
}
