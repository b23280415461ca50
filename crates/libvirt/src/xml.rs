//! The elements of a domain's XML that connect it to an interface.

use weir_config::{SocketRole, VifConfig};

/// Seconds between two attempts of a VM monitor to reach weir.
pub const RECONNECT_SECS: u32 = 1;

/// The elements that share the guest's memory, which weir maps.
pub fn memory() -> Vec<String> {
    let lines = [
        "<memoryBacking>",
        "  <source type='memfd'/>",
        "  <access mode='shared'/>",
        "</memoryBacking>",
    ];
    lines.map(Into::into).into()
}

/// The device for an interface.
pub fn interface(vif: &VifConfig) -> Vec<String> {
    let path = escaped(vif.socket.as_str());
    let mut xml = vec![
        "<interface type='vhostuser'>".into(),
        format!("  <mac address='{}'/>", vif.mac_or_derived()),
    ];
    // libvirt names the VM's side of the socket, weir its own.
    match vif.mode {
        SocketRole::Server => {
            xml.push(format!("  <source type='unix' path='{path}' mode='client'>"));
            xml.push(format!("    <reconnect enabled='yes' timeout='{RECONNECT_SECS}'/>"));
            xml.push("  </source>".into());
        }
        SocketRole::Client => {
            xml.push(format!("  <source type='unix' path='{path}' mode='server'/>"));
        }
    }
    xml.push("  <model type='virtio'/>".into());
    let [rx_ring, tx_ring] = vif.ring_sizes();
    xml.push(format!(
        "  <driver queues='{}' rx_queue_size='{rx_ring}' tx_queue_size='{tx_ring}'/>",
        vif.queues
    ));
    if let Some(mtu) = vif.mtu {
        xml.push(format!("  <mtu size='{mtu}'/>"));
    }
    xml.push("</interface>".into());
    xml
}

/// `text` between quotes or elements.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}
