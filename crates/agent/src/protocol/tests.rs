//! Bytes of the messages, and invalid messages.

use proptest::prelude::*;

use super::*;

const MAC: Mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

fn line(message: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn hello(interfaces: usize) -> Hello {
    let interface =
        Interface { mac: MAC, name: Text::new("\"\"\"\"\"\"\"\"\"\"\"\"\"\"\""), can_defer: false };
    Hello {
        version: VERSION,
        session: u32::MAX,
        agent: Text::new(&"\\".repeat(AGENT_TEXT_LEN_MAX)),
        kernel: Text::new(&"\"".repeat(AGENT_TEXT_LEN_MAX)),
        wish: Wish { budget_ns: Some(u64::MAX), weight: Some(u16::MAX) },
        interfaces: vec![interface; interfaces],
    }
}

#[test]
fn lines_are_what_the_guide_shows() {
    let report = Report {
        mac: MAC,
        interval_ns: 1_000_000_000,
        interrupts: Some(2800),
        rx_packets: 7368,
        cpu_ns: 90_000_000,
        cost_ns_per_interrupt: None,
    };
    assert_eq!(
        line(&GuestMessage::Report(report)),
        "{\"message\":\"report\",\"mac\":\"52:54:00:12:34:56\",\"interval_ns\":1000000000,\
         \"interrupts\":2800,\"rx_packets\":7368,\"cpu_ns\":90000000,\"cost_ns_per_interrupt\":null}\n"
    );
    assert_eq!(line(&GuestMessage::Bye), "{\"message\":\"bye\"}\n");
    assert_eq!(
        line(&HostMessage::Set { mac: MAC, poll_ns: Some(250_000) }),
        "{\"message\":\"set\",\"mac\":\"52:54:00:12:34:56\",\"poll_ns\":250000}\n"
    );
    assert_eq!(line(&HostMessage::Ping), "{\"message\":\"ping\"}\n");
}

#[test]
fn the_longest_hello_fits_a_line_and_comes_back() {
    let sent = GuestMessage::Hello(hello(AGENT_INTERFACES_MAX));
    let text = line(&sent);
    assert_eq!(decode::<GuestMessage>(text.trim_end().as_bytes()), Ok(sent));
}

#[test]
fn more_interfaces_than_the_bound_are_refused() {
    let text = line(&GuestMessage::Hello(hello(AGENT_INTERFACES_MAX + 1)));
    let error = decode::<GuestMessage>(text.trim_end().as_bytes()).unwrap_err();
    assert!(error.reason.as_str().starts_with("more than 16 interfaces"), "{error}");
}

#[test]
fn a_message_longer_than_a_line_is_not_sent() {
    let mut bytes = Vec::new();
    let error = encode(&GuestMessage::Hello(hello(200)), &mut bytes).unwrap_err();
    assert!(matches!(error, EncodeError::TooLong { len } if len > AGENT_LINE_BYTES_MAX), "{error}");
    assert!(bytes.is_empty());
}

#[test]
fn unknown_fields_are_passed_over_and_missing_optional_ones_are_none() {
    let text = br#"{"message":"set","mac":"52:54:00:12:34:56","colour":"green"}"#;
    assert_eq!(decode(text), Ok(HostMessage::Set { mac: MAC, poll_ns: None }));
}

#[test]
fn what_is_no_message_is_named() {
    for bad in [
        "",
        "garbage",
        "{}",
        "[]",
        "{\"message\":\"fly\"}",
        "{\"message\":\"set\",\"mac\":\"52:54:00:12:34\"}",
        "{\"message\":\"set\",\"mac\":\"52:54:00:12:34:56\",\"poll_ns\":-1}",
        "{\"message\":\"set\",\"mac\":\"52:54:00:12:34:56\",\"poll_ns\":1e99}",
        "{\"message\":\"ping\"}{\"message\":\"ping\"}",
    ] {
        assert!(decode::<HostMessage>(bad.as_bytes()).is_err(), "{bad}");
    }
    let control = b"{\"message\":\"hello\",\"version\":1,\"session\":1,\"agent\":\"\\u001b[2J\",\
        \"kernel\":\"6\",\"interfaces\":[]}";
    assert!(decode::<GuestMessage>(control).unwrap_err().reason.as_str().contains("printable"));
}

#[test]
fn an_error_quotes_a_hostile_line_without_its_control_characters() {
    let error = decode::<GuestMessage>(b"{\"message\":\"\\u001b[2J\\n\"}").unwrap_err();
    assert!(error.to_string().chars().all(|c| !c.is_control()), "{error:?}");
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..AGENT_LINE_BYTES_MAX)) {
        let _ = decode::<GuestMessage>(&bytes);
        let _ = decode::<HostMessage>(&bytes);
    }

    #[test]
    fn reports_come_back_as_they_were_sent(
        mac in any::<[u8; 6]>(),
        numbers in any::<[u64; 3]>(),
        interrupts in any::<Option<u64>>(),
        cost in any::<Option<u64>>(),
    ) {
        let [interval_ns, rx_packets, cpu_ns] = numbers;
        let sent = GuestMessage::Report(Report {
            mac: Mac(mac), interval_ns, interrupts, rx_packets, cpu_ns, cost_ns_per_interrupt: cost,
        });
        prop_assert_eq!(decode(line(&sent).trim_end().as_bytes()), Ok(sent));
    }

    #[test]
    fn any_string_makes_a_text_that_the_other_side_takes(string in any::<String>()) {
        let text = Text::new(&string);
        prop_assert!(Text::try_from(text.as_str().to_owned()).is_ok());
    }
}
