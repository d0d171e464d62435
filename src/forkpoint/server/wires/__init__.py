"""The APIs of vendors, which existing clients speak. One folder for each; what they share stands beside the folders:
`identity` reads headers, `body` reads fields, `answerers` finds who answers, and `errors` writes OpenAI's envelope."""
