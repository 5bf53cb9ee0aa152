"""What serving engines tell of themselves, whoever made them: their /metrics and KV events, in one set of terms."""
