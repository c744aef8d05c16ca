//! peerproof
