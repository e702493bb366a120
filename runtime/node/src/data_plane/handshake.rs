//! The first words of a data connection: who wants to send what to whom (N2).
//!
//! ```text
//! sender:    "SLUICE" u16 version = 1   u32 length   JSON of [`Hello`]
//! receiver:  u8 accepted (1 or 0)       u32 length   why not, as text
//! ```

use super::DataPlaneError;
use serde::{Deserialize, Serialize};
use sluice_protocol::{Run, TaskManagerId};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const MAGIC: &[u8; 6] = b"SLUICE";
const VERSION: u16 = 1;
const MAX_LENGTH: u32 = 64 * 1024;

/// What the sender says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Uid of the job.
    pub(super) job_uid: String,
    /// The sender's run.
    pub(super) run: Run,
    /// The sender.
    pub(super) from: TaskManagerId,
    /// The receiver as the sender knows it.
    pub(super) to: TaskManagerId,
}

/// Says hello and waits for the answer.
pub(super) async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    hello: &Hello,
) -> Result<(), DataPlaneError> {
    let body = serde_json::to_vec(hello).map_err(|error| DataPlaneError::Ended(error.to_string()))?;
    let mut bytes = Vec::with_capacity(body.len() + 12);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    write_text(&mut bytes, &body);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    let accepted = stream.read_u8().await?;
    if accepted > 1 {
        let text = "the other side does not answer in Sluice's data protocol; does it ask for a certificate?";
        return Err(DataPlaneError::Refused(text.to_owned()));
    }
    let text = read_text(stream).await?;
    if accepted == 1 { Ok(()) } else { Err(DataPlaneError::Refused(String::from_utf8_lossy(&text).into_owned())) }
}

/// Hears who is there.
pub(super) async fn hear<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Hello, DataPlaneError> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await?;
    if &magic != MAGIC {
        return Err(DataPlaneError::Refused("the connection does not speak Sluice's data protocol".to_owned()));
    }
    let version = stream.read_u16_le().await?;
    if version != VERSION {
        let text = format!("version {version} of the data protocol came where {VERSION} was expected; run one image");
        return Err(DataPlaneError::Refused(text));
    }
    let body = read_text(stream).await?;
    serde_json::from_slice(&body).map_err(|error| DataPlaneError::Refused(format!("a malformed handshake: {error}")))
}

/// Answers a hello.
pub(super) async fn answer<S: AsyncWrite + Unpin>(stream: &mut S, refusal: Option<&str>) -> Result<(), DataPlaneError> {
    let mut bytes = vec![u8::from(refusal.is_none())];
    write_text(&mut bytes, refusal.unwrap_or_default().as_bytes());
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    Ok(())
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    let text = &text[..text.len().min(MAX_LENGTH as usize)];
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

async fn read_text<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, DataPlaneError> {
    let length = stream.read_u32_le().await?;
    if length > MAX_LENGTH {
        return Err(DataPlaneError::Refused(format!("a handshake of {length} bytes is longer than {MAX_LENGTH}")));
    }
    let mut text = vec![0; length as usize];
    stream.read_exact(&mut text).await?;
    Ok(text)
}
