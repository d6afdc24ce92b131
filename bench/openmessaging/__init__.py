"""Row S5: the shape of load that the OpenMessaging benchmark made usual, at the distance of S3."""
