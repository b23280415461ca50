//! The messages and their bytes: one JSON object a line.
//!
//! ```text
//! agent                                     weir
//!   hello {version, session, ...}  ──────▶           each second until it is answered
//!                                  ◀──────  welcome {version, session}
//!   report {mac, ...}              ──────▶           each second, for each interface
//!                                  ◀──────  ping     each second
//!                                  ◀──────  set {mac, poll_ns}
//!   applied {mac, poll_ns, error}  ──────▶
//!   bye                            ──────▶ ◀──────  bye
//! ```
//!
//! A virtio-serial port stays open on weir's side while the agent restarts, and may still hold messages for the
//! previous agent. So an agent draws a number, its `session`, and ignores everything before a `welcome` with that
//! number. Both sides ignore unknown fields; an incompatible change raises [`VERSION`].

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use weir_limits::{AGENT_INTERFACES_MAX, AGENT_LINE_BYTES_MAX, AGENT_TEXT_LEN_MAX};
use weir_wire::Mac;

/// The protocol's version. Both sides must have the same.
pub const VERSION: u32 = 1;

/// A message from the agent in the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum GuestMessage {
    /// The agent is there, with all original settings.
    Hello(Hello),
    /// Counts of one interface since the previous report.
    Report(Report),
    /// The answer to [`HostMessage::Set`].
    Applied(Applied),
    /// The agent ends, and has restored all settings.
    Bye,
}

/// A message from weir.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum HostMessage {
    /// The answer to [`GuestMessage::Hello`].
    Welcome {
        /// weir's [`VERSION`].
        version: u32,
        /// Session number of the hello.
        session: u32,
    },
    /// Settings of an interface's driver.
    Set {
        /// Address of the interface.
        #[serde(with = "mac_as_text")]
        mac: Mac,
        /// Poll interval (ns), with interrupts off while frames come; `None`: the original
        /// settings.
        poll_ns: Option<u64>,
    },
    /// weir is there.
    Ping,
    /// weir wants nothing more: the agent restores all settings.
    Bye,
}

/// Identity and abilities of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The agent's [`VERSION`].
    pub version: u32,
    /// Session number that the agent has drawn.
    pub session: u32,
    /// The agent's release.
    pub agent: Text,
    /// The kernel's release (`uname -r`).
    pub kernel: Text,
    /// The guest's wish.
    #[serde(default, skip_serializing_if = "Wish::is_none")]
    pub wish: Wish,
    /// The guest's interfaces of virtio-net and xen-netfront, at most `AGENT_INTERFACES_MAX`.
    #[serde(deserialize_with = "few_interfaces")]
    pub interfaces: Vec<Interface>,
}

/// The wishes of a guest for its interfaces. The host's settings are bounds: a guest can take less of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// A latency budget (ns).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ns: Option<u64>,
    /// A weight among senders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

impl Wish {
    /// Returns true if the guest wishes nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// An interface of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The interface's address, by which both sides name it.
    #[serde(with = "mac_as_text")]
    pub mac: Mac,
    /// The interface's name in the guest.
    pub name: Text,
    /// True if the interface's driver can poll on a timer: Linux 5.8 and later (`napi_defer_hard_irqs`).
    pub can_defer: bool,
}

/// Counts of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Address of the interface.
    #[serde(with = "mac_as_text")]
    pub mac: Mac,
    /// Time since the previous report (ns).
    pub interval_ns: u64,
    /// Interrupts of the interface's queues; `None` if the guest's kernel does not count them by device.
    pub interrupts: Option<u64>,
    /// Frames received.
    pub rx_packets: u64,
    /// CPU time of the whole guest in interrupts, softirqs and system calls (ns).
    pub cpu_ns: u64,
    /// The guest's cost of an interrupt (ns), once known. An exit or two outside the guest come in
    /// addition.
    pub cost_ns_per_interrupt: Option<u64>,
}

/// Result of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Address of the interface.
    #[serde(with = "mac_as_text")]
    pub mac: Mac,
    /// The requested interval (ns).
    pub poll_ns: Option<u64>,
    /// Reason for a failure; the interface then has its original settings.
    pub error: Option<Text>,
}

/// Reason why a message is not sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The message is too long.
    #[error("the message has {len} bytes; at most {AGENT_LINE_BYTES_MAX} are allowed")]
    TooLong {
        /// Length of the message with the newline.
        len: usize,
    },
    /// `serde_json` failed.
    #[error("cannot write the message: {0}")]
    Json(#[from] serde_json::Error),
}

/// Reason why a line is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the line is not a message of this protocol, at column {column}: {reason}")]
pub struct DecodeError {
    /// Position of the error, counted from 1; 0 if it concerns the whole message.
    pub column: usize,
    /// Description of the error. It may quote the line, so it has no control characters and a
    /// bounded length.
    pub reason: Text,
}

/// Appends `message` and a newline to `bytes`.
///
/// # Errors
/// [`EncodeError`]; nothing is appended.
pub(crate) fn encode(message: &impl Serialize, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > AGENT_LINE_BYTES_MAX {
        return Err(EncodeError::TooLong { len: line.len() });
    }
    bytes.extend_from_slice(&line);
    Ok(())
}

/// Decodes a line without its newline.
pub(crate) fn decode<M: DeserializeOwned>(line: &[u8]) -> Result<M, DecodeError> {
    serde_json::from_slice(line).map_err(|error| DecodeError {
        column: error.column(),
        reason: Text::new(&error.to_string()),
    })
}

/// A line of at most `AGENT_TEXT_LEN_MAX` printable ASCII characters, safe to show and to log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Text(String);

/// Error: a string is not a [`Text`].
#[derive(Debug, thiserror::Error)]
#[error("a text is at most {AGENT_TEXT_LEN_MAX} printable ASCII characters")]
pub struct NotText;

impl Text {
    /// Returns the beginning of `text`, with `?` for characters other than printable ASCII.
    pub fn new(text: &str) -> Self {
        let printable = |c| if Self::allows(c) { c } else { '?' };
        Self(text.chars().take(AGENT_TEXT_LEN_MAX).map(printable).collect())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn allows(c: char) -> bool {
        c == ' ' || c.is_ascii_graphic()
    }
}

impl TryFrom<String> for Text {
    type Error = NotText;

    fn try_from(text: String) -> Result<Self, NotText> {
        let fits = text.len() <= AGENT_TEXT_LEN_MAX && text.chars().all(Self::allows);
        if fits { Ok(Self(text)) } else { Err(NotText) }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&self.0)
    }
}

fn few_interfaces<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Interface>, D::Error> {
    let interfaces = Vec::deserialize(from)?;
    if interfaces.len() <= AGENT_INTERFACES_MAX {
        Ok(interfaces)
    } else {
        Err(serde::de::Error::custom(format_args!("more than {AGENT_INTERFACES_MAX} interfaces")))
    }
}

/// Serialises an address as `52:54:00:12:34:56`.
pub(crate) mod mac_as_text {
    use serde::{Deserialize, Deserializer, Serializer};
    use weir_wire::Mac;

    pub(crate) fn serialize<S: Serializer>(mac: &Mac, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(mac)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mac, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
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
        let interface = Interface {
            mac: MAC,
            name: Text::new("\"\"\"\"\"\"\"\"\"\"\"\"\"\"\""),
            can_defer: false,
        };
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
        assert!(
            matches!(error, EncodeError::TooLong { len } if len > AGENT_LINE_BYTES_MAX),
            "{error}"
        );
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
        let control =
            b"{\"message\":\"hello\",\"version\":1,\"session\":1,\"agent\":\"\\u001b[2J\",\
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
}
