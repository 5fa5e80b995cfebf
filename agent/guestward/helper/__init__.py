"""The root side: one short-lived process a request, four verbs and no more, nothing taken on trust.

`main` reads the request and sends the answer, `trust` reads root's configuration, `facts` reads the host, `child` runs PVE's own
programs and is the only module that spawns any. `verbs` has `unlock` and `delete-snapshot`, `scratch` has `release-scratch`, `grants` has
`regrant`, and `desk` what they share. Nothing but `guestward.model` is imported.
"""
