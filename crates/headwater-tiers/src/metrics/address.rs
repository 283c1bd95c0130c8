//! Where the endpoint listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::TierError;

/// The address that `text` names: `9464` is that port of this machine's loopback, `0.0.0.0:9464` is open to the network. Port 0
/// is any that is free.
///
/// ```
/// use headwater_tiers::metrics::metrics_address;
/// assert!(metrics_address("9464")?.ip().is_loopback());
/// assert!(!metrics_address("0.0.0.0:9464")?.ip().is_loopback());
/// assert!(metrics_address("elsewhere").is_err());
/// # Ok::<(), headwater_tiers::TierError>(())
/// ```
///
/// # Errors
/// [`TierError::BadSetting`] for anything else. Names are not looked up.
pub fn metrics_address(text: &str) -> Result<SocketAddr, TierError> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let from_port = text.parse().map(|port: u16| SocketAddr::new(loopback, port));
    let from_ip = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0));
    from_port.or_else(|_| text.parse()).or_else(|_| from_ip()).map_err(|_| {
        let why = format!("`{text}` is neither a port nor an address with one, such as 127.0.0.1:9464");
        TierError::bad_setting("metrics", why)
    })
}
