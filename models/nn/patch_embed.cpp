// patch_embed
